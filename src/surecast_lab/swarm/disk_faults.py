"""Disk faults of a process cluster: damages data folders or replaces them by older copies.

Each method does a complete fault: it kills a replica, changes its data folder, starts the replica
again, and returns when the replica has recovered. The methods for one of several replicas also
check that it is neither head nor tail while it reports that it cannot read part of a stream.

In a region of several replicas, all of them must be members of the chain before the fault, so that
the others have the data that the damaged one loses. A *lone* replica (the only one of its region)
can get lost data only from other regions: publishers are stopped until the other regions have all
streams that it owns.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

from surecast.errors import SurecastError
from surecast.server.status import Status
from surecast.storage.inspect import info
from surecast_lab.swarm.file_damage import copy_folder, damage_folder, restore_folder
from surecast_lab.swarm.process_cluster import ProcessCluster

__all__ = ["DiskFaults"]

SERVING = ("head", "tail", "alone")
HEALING = ("disk-distrusted", "disks-lost", "stream-damaged", "stream-recovering")


class DiskFaults:
    """Damages and rolls back the disks of a cluster's replicas."""

    def __init__(self, cluster: ProcessCluster, rng: Random) -> None:
        self.cluster, self.rng = cluster, rng

    def folder(self, name: str) -> Path:
        return self.cluster.data(name) / "log"

    # ------------------------------------------------------------ one of several replicas

    def damage_replica(self, region: str, name: str) -> str:
        """Damage a file of a killed replica; returns a description of the damage."""
        self._wait_until_whole(region)
        self.cluster.kill(name)
        done = damage_folder(self.folder(name), self.rng)
        self.cluster.restart(name)
        self._wait_until_rejoined(region, name, done)
        return done

    def roll_back_replica(self, region: str, name: str, progress: int) -> str:
        self._wait_until_whole(region)
        copy = self.cluster.folder / f"{name}.copy"
        self.cluster.kill(name)
        copy_folder(self.folder(name), copy)
        self.cluster.restart(name)
        self._wait_until_rejoined(region, name, "copied")
        self._wait_for_progress(progress)
        self.cluster.kill(name)
        restore_folder(self.folder(name), copy)
        self.cluster.restart(name)
        self._wait_until_rejoined(region, name, "rolled back")
        return "rolled back"

    def _wait_until_whole(self, region: str) -> None:
        wanted = sorted(self.cluster.regions[region])
        self.cluster.wait(lambda: sorted(self.cluster.members(region)) == wanted)

    def _wait_until_rejoined(self, region: str, name: str, done: str) -> None:
        """Wait until the replica is a member again and has all of every stream."""

        def back() -> bool:
            status = self.cluster.server(name)
            self._check_place(name, status, done)
            members = sorted(self.cluster.members(region)) == sorted(self.cluster.regions[region])
            return members and status.ready and not _healing(status)

        self._wait(back, name, done)

    def _check_place(self, name: str, status: Status, done: str) -> None:
        chain = status.chain
        damaged = any(alarm.code == "stream-damaged" for alarm in status.alarms)
        if damaged and chain is not None and len(chain.members) > 1 and chain.place in SERVING:
            raise SurecastError(f"{name}, {done}: it is {chain.place} but cannot read a stream")

    # ------------------------------------------------------------ a lone replica

    def damage_lone(self, region: str, name: str) -> str:
        self._quiesce(region, name)
        done = "no damage: other regions do not have all of its data"
        # Checked again: it may have stored more between the check in `_quiesce` and its end.
        if self._is_elsewhere(region, name):
            done = damage_folder(self.folder(name), self.rng)
            self.cluster.batch_numbers_lost = True
        self._restart_and_wait(name, done)
        return done

    def roll_back_lone(self, region: str, name: str, progress: int) -> str:
        """Roll back a lone replica, together with its witness, which shares its folder."""
        folder = self.cluster.data(name)
        copy = self.cluster.folder / f"{name}.copy"
        self.cluster.kill(name)
        copy_folder(folder, copy)
        self.cluster.restart(name)
        self._wait_for_progress(progress)
        self._quiesce(region, name)
        done = "no damage: other regions do not have all of its data"
        # Checked again: it may have stored more between the check in `_quiesce` and its end.
        if self._is_elsewhere(region, name):
            restore_folder(folder, copy)
            done = "rolled back"
            self.cluster.batch_numbers_lost = True
        self._restart_and_wait(name, done)
        return done

    def _quiesce(self, region: str, name: str) -> None:
        """Stop publishers, wait until the other regions have everything, and kill the replica."""
        for publisher in self.cluster.publishers:
            self.cluster.stop(publisher)
        try:
            self.cluster.wait(lambda: self._others_have_all(region, name))
        finally:
            self.cluster.kill(name)
            for publisher in self.cluster.publishers:
                self.cluster.cont(publisher)

    def _others_have_all(self, region: str, name: str) -> bool:
        ours = {s.name: s.committed for s in self.cluster.server(name).streams if s.owner == region}
        return all(
            self._lowest_end_elsewhere(region, stream) >= end for stream, end in ours.items()
        )

    def _lowest_end_elsewhere(self, region: str, stream: str) -> int:
        """The lowest committed end of a stream in the other regions."""
        found = []
        for other, names in self.cluster.regions.items():
            if other != region:
                streams = self.cluster.server(names[-1]).streams
                found.append(next((s.committed for s in streams if s.name == stream), 1))
        return min(found)

    def _is_elsewhere(self, region: str, name: str) -> bool:
        """Whether all other regions have all events of the streams that the killed replica owns."""
        ends = {one.log: one.end for one in info(self.folder(name)).streams}
        return all(
            ends.get(stream_id, 1) <= self._lowest_end_elsewhere(region, stream)
            for stream, stream_id in self.cluster.streams.items()
            if self.cluster.owner(stream) == region
        )

    def _restart_and_wait(self, name: str, done: str) -> None:
        self.cluster.restart(name)

        def back() -> bool:
            status = self.cluster.server(name)
            return status.ready and not _healing(status)

        self._wait(back, name, done)

    # ------------------------------------------------------------ waiting

    def _wait_for_progress(self, progress: int) -> None:
        """Wait until the slowest reader of every stream has advanced by `progress` positions."""
        goals = {s: self.cluster.least(s) + progress for s in self.cluster.streams}
        self.cluster.wait(lambda: all(self.cluster.least(s) >= goal for s, goal in goals.items()))

    def _wait(self, condition: Callable[[], bool], name: str, done: str) -> None:
        try:
            self.cluster.wait(condition)
        except SurecastError as problem:
            status = self.cluster.server(name) if self.cluster.answers(name) else None
            state = [f"{a.code}: {a.what}" for a in status.alarms] if status else ["not running"]
            raise SurecastError(f"{name}, {done}: {state}: {problem}") from problem


def _healing(status: Status) -> bool:
    return any(alarm.code in HEALING for alarm in status.alarms)
