"""Each rule has a mutant without it, and each mutant has a test that catches it (`CAUGHT_BY`).

Such a test runs a scenario with the unchanged machines and with the mutant, and requires that only
the second run breaks a guarantee. This file checks that every mutant has such a test.

The mutants of bounds are one edited line (`tests/edits.py`). A module `test_bounds.py` has a
table CHECKS of checks and edits, and runs each check with and without its edit.
"""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.streams.publisher import Publisher
from surecast.stacks import replica_layers
from tests import mutations
from tests.edits import Edit

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
    "protocols/streams/test_schema_changes.py": (
        "KnowsCommittedSchemas",
        "KeepsSchemas",
    ),
    "surecast_lab/swarm/test_typed.py": ("TakesAnyChange",),
    "protocols/streams/test_deletion.py": (
        "GivesPositionsBehindTheEnd",
        "KnowsOnlyItsOwnEnd",
        "RefusesFormerStreams",
        "SendsNoEndEvent",
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
        "RepeatsOnlyInSilence",
    ),
    "protocols/streams/test_cursors.py": (
        "AnswersBeforeTheBarrier",
        "MovesForAnybody",
        "AnswersHoldersFromMemory",
        "AnswersUncommitted",
        "FencesLate",
    ),
    "protocols/streams/test_cursor_changes.py": (
        "LeavesHolderInPlace",
        "TakesExpelledHolders",
        "RepeatsChanges",
        "DeletesOnlyTheName",
    ),
    "protocols/streams/test_cursors_of_deleted.py": (
        "KeepsPositionsOfDeletedStreams",
        "SavesPositionsInDeletedStreams",
        "LooksForNoPositions",
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
    "protocols/chain/test_states.py": ("ServesAtOnce",),
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


def test_each_mutant_derives_from_a_machine_that_is_in_use() -> None:
    machines = (*replica_layers().values(), MeshPeer, Publisher)
    strange = [name for name in mutants() if not issubclass(getattr(mutations, name), machines)]
    assert strange == []


# ---------------------------------------------------------------- mutants that are edits

# Bounds that no test covered when a review tried 133 mutants → the folder of the test_bounds.py
# and its check that covers the bound now.
FOUND_IN_REVIEW: dict[str, tuple[str, str]] = {
    "batches of a publisher that are remembered": ("protocols/chain", "recent_batches"),
    "publishes while the disk is behind": ("protocols/chain", "pending_publishes"),
    "pulled events while the disk is behind": ("protocols/chain", "pending_pulled_events"),
    "a state in parts, its size": ("core", "size_of_a_state"),
    "a state in parts, empty ones": ("core", "empty_part_of_a_state"),
    "subscriptions below position 1": ("protocols/streams", "first_position"),
    "subscriptions of regions below position 1": ("protocols/sprinkler", "first_position"),
    "parts of an advertisement": ("protocols/sprinkler", "parts_of_an_advertisement"),
    "publishers that are forwarded": ("protocols/sprinkler", "publishers"),
    "clients that wait for a cursor": ("protocols/streams", "clients_that_wait"),
    "connections that are refused in words": ("runtime", "refused_connections"),
    "peers that are not called for a while": ("runtime", "peers_in_reconnect_pause"),
    "void ranges in an answer": ("server", "void_ranges_in_an_answer"),
    "extents in an answer": ("server", "extents_in_an_answer"),
    "time of a publish by HTTP": ("server", "time_of_a_publish"),
    "streams that match a pattern": ("endpoint", "streams_of_a_pattern"),
    "the highest position, exactly": ("columns", "highest_position"),
    "keys below what was collected": ("columns", "keys_below_what_was_collected"),
    "chunks of batches that are done": ("pipeline", "spooled_chunks_of_done_batches"),
}


def checks_in(source: str) -> list[str]:
    """The names of the checks in the table CHECKS of a module; each row must have an edit."""
    tables = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "CHECKS"
    ]
    rows = [row for table in tables if isinstance(table, ast.List) for row in table.elts]
    found = []
    for row in rows:
        assert isinstance(row, ast.Tuple)
        check, edit = row.elts
        assert isinstance(edit, ast.Call)
        assert ast.unparse(edit.func) == "Edit"
        found.append(ast.unparse(check))
    return found


@pytest.mark.parametrize("found", FOUND_IN_REVIEW)
def test_every_gap_that_a_review_found_has_a_check(found: str) -> None:
    folder, check = FOUND_IN_REVIEW[found]
    assert check in checks_in((TESTS / folder / "test_bounds.py").read_text())


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("test_bounds.py")), ids=lambda path: str(path.parent.name)
)
def test_every_check_of_a_bound_is_run_with_and_without_its_edit(path: Path) -> None:
    text = path.read_text()
    assert len(checks_in(text)) == len(set(checks_in(text))) > 0
    assert "@each_check(CHECKS)\ndef test_bound_holds" in text
    assert "@each_check(CHECKS)\ndef test_a_missing_bound_is_noticed" in text


def test_an_edit_whose_text_is_missing_raises() -> None:
    edit = Edit("tests.test_mutations:mutants", "no such text", "")
    with pytest.raises(LookupError, match="0 times: change this edit"), edit.applied():
        pass


def test_an_edit_is_undone_afterwards() -> None:
    before = mutants()
    module = Edit("tests.test_mutations:mutants", "return [", "return ['x'] + [")
    with module.applied():
        assert import_module("tests.test_mutations").mutants() == ["x", *before]
    assert import_module("tests.test_mutations").mutants() == before
