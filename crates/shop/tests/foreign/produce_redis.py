"""Adds messages to a stream of Redis, with redis-py: produce_redis.py URL STREAM"""

import sys

import redis
from cloudevents.core.bindings import http

import cloud_event

url, stream = sys.argv[1:]
client = redis.Redis.from_url(url)
for mode, event, attributes, body, headers in cloud_event.wanted():
    fields = headers | {"content-type": "application/json"}
    if mode == "plain":
        fields |= {"message_id": attributes["id"], "type": attributes["type"]}
    elif mode == "wrong":
        fields |= {http.CE_PREFIX + name: value for name, value in attributes.items()}
    else:
        # CloudEvents has no binding for Redis; that of HTTP has the same parts.
        make = http.to_binary_event if mode == "binary" else http.to_structured_event
        message = make(event)
        body = message.body
        fields |= message.headers
    client.xadd(stream, fields | {"data": body})
