"""The log of a server process on stderr: lines of text, or a JSON object per line."""

import json
import logging
import sys
from datetime import UTC, datetime

from surecast.server.config import LogConfig

__all__ = ["ALARM_OVER", "TextFormatter", "set_up"]

ALARM_OVER = "this alarm is over: "  # then the code of the alarm, at the end of the line


def set_up(config: LogConfig) -> None:
    """Send the log of the whole process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if config.format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
    for noisy in ("asyncio", "uvicorn"):  # only their warnings and errors are of interest
        logging.getLogger(noisy).setLevel(max(root.level, logging.WARNING))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
