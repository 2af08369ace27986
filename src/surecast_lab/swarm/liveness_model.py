"""A model of a deployment that predicts which readers must make progress during faults.

`process_torture.py` waits for progress after each fault, and this model tells for which readers to
wait. If events should reach a region according to the model and do not, the deployment is stuck,
which is a violation.

- A region *works* if it is not blocked, and either a member of its chain or all its replicas are
  up. It is blocked if its witness (which decides the chain's members) is down, and the members have
  had to change since the witness went down. A region that works pulls events from other regions and
  serves them.
- It is *writable* if it works with at least two replicas (or with its only one).
- New events of a stream reach a region if the owner is writable and not cut off from its publisher,
  and a path of intact links and working regions leads from the owner to the region.
"""

__all__ = ["LivenessModel"]


class LivenessModel:
    """`regions` has each region's replicas. Links are named as in a `ProcessCluster`."""

    def __init__(self, regions: dict[str, tuple[str, ...]]) -> None:
        self.regions = regions
        # According to the witness's last answer: a replica that was down may have been removed, and
        # a replica that was restarted may not have joined yet.
        self.members = {region: list(names) for region, names in regions.items()}
        self.down: dict[str, bool] = {}  # replicas killed or stopped
        self.without_witness: dict[str, bool] = {}  # regions whose witness is down
        self.blocked: dict[str, bool] = {}  # those of them whose chain needs a change of members
        self.cut: dict[str, bool] = {}  # links between regions
        self.publisher_cut: dict[str, bool] = {}  # regions whose publisher is cut off

    # ------------------------------------------------------------ faults

    def replica_down(self, region: str, name: str) -> None:
        self.down[name] = True
        self._note_change(region)

    def replica_up(self, region: str, name: str) -> None:
        del self.down[name]
        self._note_change(region)

    def witness_down(self, region: str) -> None:
        self.without_witness[region] = True
        if sorted(self.members[region]) != sorted(self.regions[region]):
            self._note_change(region)

    def witness_up(self, region: str) -> None:
        del self.without_witness[region]
        self.blocked.pop(region, None)

    def _note_change(self, region: str) -> None:
        if region in self.without_witness:
            self.blocked[region] = True

    # ------------------------------------------------------------ expected progress

    def up(self, region: str) -> list[str]:
        return [name for name in self.regions[region] if name not in self.down]

    def works(self, region: str) -> bool:
        up = self.up(region)
        here = len(up) == len(self.regions[region]) or any(n in up for n in self.members[region])
        return here and region not in self.blocked

    def writable(self, region: str) -> bool:
        return self.works(region) and len(self.up(region)) >= min(2, len(self.regions[region]))

    def reached_from(self, owner: str) -> list[str]:
        """The regions that new events of `owner`'s streams must reach."""
        if not self.writable(owner) or owner in self.publisher_cut:
            return []
        found = [owner]
        for region in found:
            for other in self.regions:
                link = f"{min(region, other)}-{max(region, other)}"
                if other not in found and link not in self.cut and self.works(other):
                    found.append(other)
        return found
