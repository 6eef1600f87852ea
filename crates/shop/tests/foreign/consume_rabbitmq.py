"""Reads everything that a queue of RabbitMQ has, with pika: consume_rabbitmq.py URL QUEUE"""

import sys

import pika
from cloudevents.core.bindings import amqp

import cloud_event

url, queue = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
while True:
    method, properties, body = channel.basic_get(queue)
    if method is None:
        break
    message = amqp.AMQPMessage(
        properties={"content-type": properties.content_type},
        application_properties=properties.headers,
        application_data=body,
    )
    attributes = cloud_event.names(properties.headers, amqp.CE_PREFIX_UNDERSCORE)
    cloud_event.tell(amqp.from_binary_event(message), attributes, properties.message_id)
    channel.basic_ack(method.delivery_tag)
connection.close()
