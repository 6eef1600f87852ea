"""Reads everything that a stream of NATS has, with nats-py: consume_nats.py URL STREAM"""

import asyncio
import sys

import nats
from cloudevents.core.bindings import http

import cloud_event

# Longer than a server takes for a message that it has.
PATIENCE = 30


async def consume(url, stream):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    held = (await jetstream.stream_info(stream)).state.messages
    reader = await jetstream.pull_subscribe("", stream=stream)
    for _ in range(held):
        [message] = await reader.fetch(1, timeout=PATIENCE)
        # The binding of NATS writes headers as that of HTTP does.
        event = http.from_binary_event(http.HTTPMessage(headers=message.headers, body=message.data))
        attributes = cloud_event.names(message.headers, http.CE_PREFIX)
        cloud_event.tell(event, attributes, message.headers["Nats-Msg-Id"])
        await message.ack()
    await client.close()


url, stream = sys.argv[1:]
asyncio.run(consume(url, stream))
