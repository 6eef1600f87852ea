"""Sends a message whose correlation id is no UTF-8, or takes it out of its queue: unparsable_rabbitmq.py URL QUEUE send|take"""

import sys
import time

import pika

ODD = b"\xff\xfe"

url, queue, verb = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
if verb == "send":
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"{}", pika.BasicProperties(correlation_id=ODD), mandatory=True)
else:
    # Somebody else may just have it. What is not acknowledged goes back when the connection ends.
    until = time.monotonic() + 30
    while True:
        got, properties, _ = channel.basic_get(queue)
        if got is not None and properties.correlation_id == ODD:
            channel.basic_ack(got.delivery_tag)
            break
        assert time.monotonic() < until, "it does not come"
        if got is None:
            time.sleep(0.05)
connection.close()
