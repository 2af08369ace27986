"""Each rule has a mutant without it, and each mutant a test that catches it: the table.

A test runs a story with the machines as they are and with the mutant, and demands that only the
second breaks a guarantee; here it is checked that no mutant is left without such a test.
"""

import re
from pathlib import Path

import pytest

from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.streams.publisher import Publisher
from surecast.stacks import replica_layers
from tests import mutations

TESTS = Path(__file__).parent

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "protocols/chain/test_rules.py": (
        "KeepsForks",
        "AcksDuplicatesEarly",
        "TakesAnyNumber",
        "ForgetsPublishers",
        "ShowsUncommitted",
        "ForwardsBeforeStoring",
    ),
    "protocols/sprinkler/test_rules.py": (
        "IgnoresMovedTails",
        "NeverRecovers",
        "TakesGapsForVoids",
        "StampsRawTime",
        "TakesAnyRule",
        "DropsWhenFull",
    ),
    "protocols/sprinkler/test_mesh_rules.py": (
        "NeverAnnounces",
        "NeverLowersNext",
        "ForgetsSenders",
        "TakesBackTheDead",
        "LeavesHoles",
        "WaitsForever",
        "WaitsForTheDead",
        "NeverPolls",
        "IgnoresLeaners",
        "HoldsWithoutLimit",
        "AsksPeersAgain",
        "LearnsOnlyInTime",
        "StaysUnknown",
        "ClaimsTheFuture",
        "LonelyServers",
    ),
    "protocols/sprinkler/test_ownership.py": (
        "TablesMayDiffer",
        "ForwardsUnderItsOwnName",
        "TakesAnybodysAck",
    ),
    "protocols/streams/test_cursors.py": (
        "AnswersBeforeTheBarrier",
        "MovesForAnybody",
        "AnswersHoldersFromMemory",
        "AnswersUncommitted",
        "FencesLate",
    ),
    "protocols/streams/test_locate.py": ("NamesVoidPlaces",),
    "protocols/streams/test_lost_ranges.py": ("ForfeitsReadable",),
    "protocols/streams/test_feeding.py": (
        "ServesUnfed",
        "FeedsAtOnce",
    ),
    "protocols/chain/test_replica_rules.py": (
        "WaitsForLearnersForever",
        "TakesLearnersUnclean",
        "TrustsForkedSnapshots",
        "RemembersLostBatches",
        "OverlooksSuccessorAhead",
    ),
    "protocols/chain/test_who_may_say.py": (
        "TakesAnybodysForward",
        "TakesAnybodysPublishers",
        "TakesAnyChainsConfiguration",
    ),
    "protocols/sprinkler/test_who_may_say.py": (
        "TakesAnybodysAdvertisement",
        "TakesAnybodysPublishersKnown",
        "TakesPlacedBatches",
    ),
    "protocols/sprinkler/test_pulled_batches.py": (
        "AppendsOtherStreams",
        "AppendsOlderBatches",
    ),
    "protocols/streams/test_identities.py": ("OvertakesOldIdentity",),
    "protocols/test_damage_rules.py": (
        "ServesWithHoles",
        "IgnoresOlderCopies",
        "IgnoresLostChanges",
        "CutsAtHoles",
        "NumbersAtOnce",
        "MixesHistories",
        "DropsHistories",
        "KeepsOutdatedPublishers",
        "TakesUnsureAnswers",
    ),
}


def mutants() -> list[str]:
    defined = re.findall(r"^class (\w+)\(", (TESTS / "mutations.py").read_text(), re.MULTILINE)
    return [name for name in defined if not name.startswith("_")]


def test_every_mutant_has_a_test_that_catches_it() -> None:
    listed = [name for names in CAUGHT_BY.values() for name in names]
    assert sorted(listed) == sorted(mutants())


@pytest.mark.parametrize("path", CAUGHT_BY)
def test_the_tests_name_the_mutants_they_catch(path: str) -> None:
    text = (TESTS / path).read_text()
    missing = [name for name in CAUGHT_BY[path] if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_a_mutant_takes_the_place_of_a_machine_that_is_in_use() -> None:
    machines = (*replica_layers().values(), MeshPeer, Publisher)
    strange = [name for name in mutants() if not issubclass(getattr(mutations, name), machines)]
    assert strange == []
