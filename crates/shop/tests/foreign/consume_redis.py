"""Reads everything that a stream of Redis has, with redis-py: consume_redis.py URL STREAM"""

import json
import sys

import redis
from cloudevents.core.v1.event import CloudEvent
from dateutil.parser import isoparse

import cloud_event

PREFIX = "ce-"

url, stream = sys.argv[1:]
client = redis.Redis.from_url(url, decode_responses=True)
last = "0"
while read := client.xread({stream: last}, count=10):
    [[_, entries]] = read
    for last, fields in entries:
        # CloudEvents has no binding for Redis, so the attributes are named as in the others and written as they are.
        attributes = {name: fields[PREFIX + name] for name in cloud_event.names(fields, PREFIX)}
        named = list(attributes)
        attributes["time"] = isoparse(attributes["time"])
        attributes["datacontenttype"] = fields["content-type"]
        event = CloudEvent(attributes, json.loads(fields["data"]))
        cloud_event.tell(event, named, fields["ce-id"])
