"""Sends messages to a stream of NATS, with nats-py: produce_nats.py URL SUBJECT

They have no Nats-Msg-Id, by which the stream would drop what it has seen.
"""

import asyncio
import sys

import nats
from cloudevents.core.bindings import http

import cloud_event


async def produce(url, subject):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    for mode, event, attributes, body, headers in cloud_event.wanted():
        headers["content-type"] = "application/json"
        if mode == "wrong":
            headers |= {http.CE_PREFIX + name: value for name, value in attributes.items()}
        else:
            make = http.to_binary_event if mode == "binary" else http.to_structured_event
            message = make(event)
            body = message.body
            headers |= message.headers
        await jetstream.publish(subject, body, headers=headers)
    await client.close()


url, subject = sys.argv[1:]
asyncio.run(produce(url, subject))
