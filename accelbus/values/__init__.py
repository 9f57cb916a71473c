r"""What users log, and what becomes of it: the one table of rules.

==================================================  ==============================================================
logged                                              kept as
==================================================  ==============================================================
bool, int, float, str, None                         itself; nan and infinities too
int outside -2**63 … 2**64-1                        the nearest float; beyond the floats its hexadecimal text
str with lone surrogates                            the surrogates written out: ``\ud800``
subclass of str, int, float; Enum                   plain value; the member's value
Decimal, Fraction, any ``__index__``/``__float__``  number (a Decimal beyond the floats: infinity)
datetime, date, time                                ISO 8601 text; aware datetimes in UTC
timedelta                                           ISO 8601 duration: ``PT1.5S``
UUID, Path                                          text
bytes                                               text; what is not UTF-8 written out: ``\xff``
numpy scalar; array or tensor of one element        number, bool or text, whatever its shape
array or tensor of up to `MAX_ITEMS` elements       (nested) list
numpy datetime64, timedelta64                       text, as numpy writes it
DTensor                                             its local value when replicated, else refused: it is never gathered
mapping, dataclass, attrs, msgspec struct           its leaves, each a value of its own; an empty one holds no value
list, tuple, set, deque, range                      list (a set: in no order)
media wrapper (`accelbus.media`)                    packed media; a list of them is one value each, ``key/0``, ``key/1``, …
anything else                                       refused: a `Fault`
==================================================  ==============================================================

Keys keep their characters, control characters included, and may be empty; trackers that cannot take one map it. Nested keys are
joined with ``/``. A key that is not text becomes ``str()`` of what it would be kept as. Where two values of one call would share a
name, the one that is nested least keeps it (text keys before others, then the first), the others get ``#2``, ``#3``, …

The fast path encodes the dict as it is (`encoder`) and leaves names to the readers (`flatten`); the slow path (`sanitise`) names and
repairs. Both end in the same model, and nothing disappears without a `Fault`, with one exception: two keys of one mapping that
*encode* the same (an Enum member and its value) leave one value on the fast path.
"""

from __future__ import annotations

from accelbus.values.hyperparameters import config_values
from accelbus.values.names import Value, flatten, readable
from accelbus.values.pieces import Pieces, split
from accelbus.values.repair import Fault, sanitise
from accelbus.values.rules import MAX_ITEMS, Encoder, Hook, UnsupportedValueError, copy_now, encoder
from accelbus.values.steps import step_of

__all__ = [
    "MAX_ITEMS",
    "Encoder",
    "Fault",
    "Hook",
    "Pieces",
    "UnsupportedValueError",
    "Value",
    "config_values",
    "copy_now",
    "encoder",
    "flatten",
    "readable",
    "sanitise",
    "split",
    "step_of",
]
