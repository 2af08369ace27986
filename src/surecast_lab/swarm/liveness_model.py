"""What should get on, given what is broken: a model of a deployment in a few dozen lines.

A round waits for progress after each misfortune. This says whose progress it may wait for: where
the model says that events get through and they do not, something is stuck, and that is a fault.

- A region *works* when a member of its chain is up, or all replicas are up again, and its witness
  was there for whatever change of the chain that took. Then it pulls and serves.
- It is *writable* when it works with at least two replicas (or with its only one).
- Events of a stream reach a region over links that are whole, by way of regions that work.
"""

__all__ = ["LivenessModel"]


class LivenessModel:
    """`regions` has each region's replicas. Names of links and witnesses are those of a fleet."""

    def __init__(self, regions: dict[str, tuple[str, ...]]) -> None:
        self.regions = regions
        # As the witness last said: a replica that seemed to be gone may have been dropped, and one
        # that came back may not have joined yet.
        self.members = {region: list(names) for region, names in regions.items()}
        self.down: dict[str, bool] = {}  # replicas killed or stopped
        self.blind: dict[str, bool] = {}  # regions without their witness
        self.shaken: dict[str, bool] = {}  # ... whose chain had to change since
        self.cut: dict[str, bool] = {}  # links between regions
        self.mute: dict[str, bool] = {}  # regions whose publisher is cut off

    # ------------------------------------------------------------ what happens

    def replica_down(self, region: str, name: str) -> None:
        self.down[name] = True
        self._shake(region)

    def replica_up(self, region: str, name: str) -> None:
        del self.down[name]
        self._shake(region)

    def witness_down(self, region: str) -> None:
        self.blind[region] = True
        if sorted(self.members[region]) != sorted(self.regions[region]):
            self._shake(region)

    def witness_up(self, region: str) -> None:
        del self.blind[region]
        self.shaken.pop(region, None)

    def _shake(self, region: str) -> None:
        if region in self.blind:
            self.shaken[region] = True

    # ------------------------------------------------------------ what should get on

    def up(self, region: str) -> list[str]:
        return [name for name in self.regions[region] if name not in self.down]

    def works(self, region: str) -> bool:
        up = self.up(region)
        here = len(up) == len(self.regions[region]) or any(n in up for n in self.members[region])
        return here and region not in self.shaken

    def writable(self, region: str) -> bool:
        return self.works(region) and len(self.up(region)) >= min(2, len(self.regions[region]))

    def reached_from(self, owner: str) -> list[str]:
        """The regions that new events of this one's streams get to."""
        if not self.writable(owner) or owner in self.mute:
            return []
        found = [owner]
        for region in found:
            for other in self.regions:
                link = f"{min(region, other)}-{max(region, other)}"
                if other not in found and link not in self.cut and self.works(other):
                    found.append(other)
        return found
