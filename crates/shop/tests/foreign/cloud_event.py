"""What the consumers share: every message is a valid CloudEvent, or the consumer ends with an error. And what the producers share:
they send what the test tells them, however wrong."""

import json
import sys

from cloudevents.core.v1.event import CloudEvent

# The SDK makes up an id, a time and a version where a message has none. None of ours may need that.
ATTRIBUTES = ["id", "source", "specversion", "time", "type"]


def tell(event, attributes, own_id):
    """Tells the test of an event that the SDK of CloudEvents has read, as a line of JSON.

    `attributes` are the names that the message really had, `own_id` is what its protocol calls it.
    """
    missing = [name for name in ATTRIBUTES if name not in attributes]
    assert not missing, f"{own_id} has no {missing}"
    assert event.get_id() == own_id, f"{own_id} says that it is {event.get_id()}"
    assert event.get_datacontenttype() == "application/json", event.get_datacontenttype()
    seen = {
        "id": event.get_id(),
        "source": event.get_source(),
        "type": event.get_type(),
        "data": event.get_data(),
    }
    print(json.dumps(seen), flush=True)


def names(headers, prefix):
    """The attributes among the headers of a message. HTTP lets whoever sends them write them in capitals."""
    return [name[len(prefix):].lower() for name in headers if name.lower().startswith(prefix.lower())]


def wanted():
    """What the test wants to be sent, a line of JSON for each message, as (mode, event, attributes, body, headers).

    In the modes `binary` and `structured` the SDK of CloudEvents makes the message of the event. `plain` knows nothing of CloudEvents,
    and `wrong` has whatever attributes and bytes it is told: no SDK would make it.
    """
    for line in sys.stdin:
        message = json.loads(line)
        mode, attributes, data = message["mode"], message["attributes"], message.get("data")
        event = CloudEvent(dict(attributes), data) if mode in ("binary", "structured") else None
        body = bytes(message["body"]) if mode == "wrong" else json.dumps(data).encode()
        yield mode, event, attributes, body, message["headers"]
