"""The deterministic simulator: a seed, some machines, and everything that can go wrong.

world.py      the clock, the loop, effects, and faults as methods
loop.py       the loop itself, and what each effect does
session.py    one end of a session
agenda.py     what happens when
node.py       one node: machine, timers, inbox
network.py    sessions and datagrams
links.py      delay, bandwidth, loss; which link joins whom; cuts
topology.py   regions and the links between them
disks.py      syncs and their answers, on `storage.memory`
faults.py     faults as values, to be drawn and scheduled
costs.py      what computing costs
sizes.py      how large a message is
trace.py      the record of a run, its digest and its table
playback.py   recordings of real nodes, lived again
"""

from surecast.core.machine import NodeContext
from surecast.sim.costs import Costs
from surecast.sim.links import Link
from surecast.sim.topology import Topology
from surecast.sim.trace import Trace
from surecast.sim.world import World

__all__ = ["Costs", "Link", "NodeContext", "Topology", "Trace", "World"]
