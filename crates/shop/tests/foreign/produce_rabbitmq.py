"""Sends messages to an exchange of RabbitMQ, with pika: produce_rabbitmq.py URL EXCHANGE ROUTING_KEY"""

import sys

import pika
from cloudevents.core.bindings import amqp

import cloud_event

url, exchange, key = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.confirm_delivery()
for mode, event, attributes, body, headers in cloud_event.wanted():
    properties = pika.BasicProperties(content_type="application/json", delivery_mode=pika.DeliveryMode.Persistent)
    if mode == "plain":
        properties.message_id, properties.type = attributes["id"], attributes["type"]
    elif mode == "wrong":
        headers |= {amqp.CE_PREFIX_UNDERSCORE + name: value for name, value in attributes.items()}
    else:
        make = amqp.to_binary_event if mode == "binary" else amqp.to_structured_event
        message = make(event)
        body, properties.content_type = message.application_data, message.properties["content-type"]
        headers |= message.application_properties
    properties.headers = headers
    channel.basic_publish(exchange, key, body, properties, mandatory=True)
connection.close()
