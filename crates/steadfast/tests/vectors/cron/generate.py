"""Writes croniter.tsv: what croniter says to each line of cases.tsv.

In a virtual environment: pip install croniter==6.2.4 tzdata && python generate.py
"""

from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

from croniter import croniter

HERE = Path(__file__).parent
FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def answer(expression, zone, after):
    moment = datetime.strptime(after, FORMAT).replace(tzinfo=timezone.utc).astimezone(ZoneInfo(zone))
    # Six fields have the second last, unless it is told otherwise.
    ticks = croniter(expression, moment, second_at_beginning=True)
    following = (ticks.get_next(datetime) for _ in range(5))
    return ",".join(tick.astimezone(timezone.utc).strftime(FORMAT) for tick in following)


with open(HERE / "croniter.tsv", "w") as file:
    for line in (HERE / "cases.tsv").read_text().splitlines():
        try:
            ticks = answer(*line.split("\t"))
        except Exception:  # It refuses the expression, or finds nothing.
            ticks = "-"
        file.write(f"{line}\t{ticks}\n")
