"""Disks of a fleet that are damaged or rolled back, and replicas that come back from that.

Each of these begins and ends at once: a replica is killed, something happens to its data folder, it
is started, and the story goes on when it is whole again. Meanwhile it must not be head or tail of a
chain that has other members while it cannot read part of a stream, and whatever is wrong must be an
alarm.

A region of several replicas needs all of them; the others have what the damaged one loses. A lone
replica has copies in other regions only: publishers are stopped until these have all that it owns.
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
    def __init__(self, fleet: ProcessCluster, rng: Random) -> None:
        self.fleet, self.rng = fleet, rng

    def folder(self, name: str) -> Path:
        return self.fleet.data(name) / "log"

    # ------------------------------------------------------------ one of several replicas

    def damage_replica(self, region: str, name: str) -> str:
        """What was done to it."""
        self._whole(region)
        self.fleet.kill(name)
        done = damage_folder(self.folder(name), self.rng)
        self.fleet.restart(name)
        self._rejoins(region, name, done)
        return done

    def roll_back_replica(self, region: str, name: str, progress: int) -> str:
        self._whole(region)
        copy = self.fleet.folder / f"{name}.copy"
        self.fleet.kill(name)
        copy_folder(self.folder(name), copy)
        self.fleet.restart(name)
        self._rejoins(region, name, "copied")
        self._advances(progress)
        self.fleet.kill(name)
        restore_folder(self.folder(name), copy)
        self.fleet.restart(name)
        self._rejoins(region, name, "rolled back")
        return "rolled back"

    def _whole(self, region: str) -> None:
        wanted = sorted(self.fleet.regions[region])
        self.fleet.wait(lambda: sorted(self.fleet.members(region)) == wanted)

    def _rejoins(self, region: str, name: str, done: str) -> None:
        """Wait until it is a member again, with the whole of every stream."""

        def back() -> bool:
            status = self.fleet.server(name)
            self._look(name, status, done)
            members = sorted(self.fleet.members(region)) == sorted(self.fleet.regions[region])
            return members and status.ready and not _healing(status)

        self._wait(back, name, done)

    def _look(self, name: str, status: Status, done: str) -> None:
        chain = status.chain
        damaged = any(alarm.code == "stream-damaged" for alarm in status.alarms)
        if damaged and chain is not None and len(chain.members) > 1 and chain.place in SERVING:
            raise SurecastError(f"{name}, {done}: it is {chain.place}, but cannot read a stream")

    # ------------------------------------------------------------ a lone replica

    def damage_lone(self, region: str, name: str) -> str:
        self._quiesce(region, name)
        done = "nothing: other regions do not have all of it"
        if self._is_elsewhere(region, name):
            done = damage_folder(self.folder(name), self.rng)
            self.fleet.names_lost = True
        self._resume(name, done)
        return done

    def roll_back_lone(self, region: str, name: str, progress: int) -> str:
        """With its witness, which is inside it."""
        folder = self.fleet.data(name)
        copy = self.fleet.folder / f"{name}.copy"
        self.fleet.kill(name)
        copy_folder(folder, copy)
        self.fleet.restart(name)
        self._advances(progress)
        self._quiesce(region, name)
        done = "nothing: other regions do not have all of it"
        if self._is_elsewhere(region, name):
            restore_folder(folder, copy)
            done = "rolled back"
            self.fleet.names_lost = True
        self._resume(name, done)
        return done

    def _quiesce(self, region: str, name: str) -> None:
        """Stop publishers, let the other regions have all, and kill the replica."""
        for publisher in self.fleet.publishers:
            self.fleet.stop(publisher)
        try:
            self.fleet.wait(lambda: self._level(region, name))
        finally:
            self.fleet.kill(name)
            for publisher in self.fleet.publishers:
                self.fleet.cont(publisher)

    def _level(self, region: str, name: str) -> bool:
        ours = {s.name: s.committed for s in self.fleet.server(name).streams if s.owner == region}
        return all(self._others(region, stream) >= end for stream, end in ours.items())

    def _others(self, region: str, stream: str) -> int:
        """How far the region is that has least of a stream."""
        found = []
        for other, names in self.fleet.regions.items():
            if other != region:
                streams = self.fleet.server(names[-1]).streams
                found.append(next((s.committed for s in streams if s.name == stream), 1))
        return min(found)

    def _is_elsewhere(self, region: str, name: str) -> bool:
        """Whether what the dead replica's disk has of its own streams is in all other regions."""
        ends = {one.log: one.end for one in info(self.folder(name)).streams}
        return all(
            ends.get(stream_id, 1) <= self._others(region, stream)
            for stream, stream_id in self.fleet.streams.items()
            if self.fleet.owner(stream) == region
        )

    def _resume(self, name: str, done: str) -> None:
        self.fleet.restart(name)

        def back() -> bool:
            status = self.fleet.server(name)
            return status.ready and not _healing(status)

        self._wait(back, name, done)

    # ------------------------------------------------------------ waiting

    def _advances(self, progress: int) -> None:
        """Wait until every stream has got so much longer."""
        goals = {s: self.fleet.least(s) + progress for s in self.fleet.streams}
        self.fleet.wait(lambda: all(self.fleet.least(s) >= goal for s, goal in goals.items()))

    def _wait(self, condition: Callable[[], bool], name: str, done: str) -> None:
        try:
            self.fleet.wait(condition)
        except SurecastError as problem:
            status = self.fleet.server(name) if self.fleet.answers(name) else None
            told = [f"{a.code}: {a.what}" for a in status.alarms] if status else ["it is dead"]
            raise SurecastError(f"{name}, {done}: {told}: {problem}") from problem


def _healing(status: Status) -> bool:
    return any(alarm.code in HEALING for alarm in status.alarms)
