"""What a coordinator sends to whom, without a network: its answers are called directly."""

import asyncio
import json
import socket
from types import SimpleNamespace

import numpy as np
import pytest
from hivemind.proto.runtime_pb2 import ExpertUID
from hivemind.utils import MSGPackSerializer

from tasks.contract import StageError, UserError
from tasks.pretraining.batches import PackedSplit
from tasks.pretraining.collaborative import fetching
from tasks.pretraining.collaborative.manifest import Source
from tasks.pretraining.collaborative.serving import MOST_ROWS, Server, host_of
from tasks.record import digest_of, outputs_of, verified_record
from tasks.store import Store

PLACE = "artifacts/pack/0123456789abcdef"


@pytest.fixture
def small_artifact(tmp_path, shard_writer):
    """A packed corpus of 40 sequences as a finished artifact."""
    folder = tmp_path / "coordinator" / PLACE
    (folder / "data").mkdir(parents=True)
    ids = np.random.default_rng(0).integers(0, 500, (40, 8)).astype(np.uint16)
    shard_writer(folder / "data" / "train-00000.arrow", ids)
    (folder / "config.json").write_text("x" * (2**18 + 5))  # two pieces
    outputs = outputs_of(folder)
    now = "2026-01-01T00:00:00Z"
    record = {
        "stage": "pack", "version": 1, "fingerprint": "0" * 64, "identity": {}, "resolved": {}, "inputs": {},
        "outputs": {name: vars(output) for name, output in outputs.items()}, "digest": digest_of(outputs),
        "metrics": {}, "started": now, "finished": now, "seconds": 1.0, "environment": {},
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def small_split(small_artifact):
    return PackedSplit(small_artifact, "train")


class Peers:
    """Who is connected, from where."""

    def __init__(self, **addresses: str):
        self._peers = [SimpleNamespace(peer_id=name, addrs=[address]) for name, address in addresses.items()]

    async def list_peers(self):
        return self._peers


@pytest.fixture
def server(small_artifact):
    return Server(Peers(asha="/ip4/127.0.0.1/tcp/5", far="/ip4/127.0.0.1/tcp/6/p2p/Qm/p2p-circuit"),
                  {PLACE: small_artifact}, small_artifact)  # fmt: skip


async def all_of(stream):
    return b"".join([piece.serialized_info async for piece in stream])


def test_files_of_the_artifact_are_sent_as_they_are(server, small_artifact):
    for name in ("record.json", "data/train-00000.arrow", "config.json"):
        sent = asyncio.run(all_of(server.file(ExpertUID(uid=f"{PLACE}/{name}"), None)))
        assert sent == (small_artifact / name).read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        f"{PLACE}/../../../secret",
        f"{PLACE}/extra.txt",
        "record.json",
        "/etc/passwd",
        "",
        PLACE,
        "artifacts/pack/ffff/record.json",
    ],
)
def test_nothing_else_is_sent(server, small_artifact, name):
    (small_artifact / "extra.txt").write_text("not in the record")
    assert asyncio.run(all_of(server.file(ExpertUID(uid=name), None))) == b""


def rows(server, asked):
    answer = asyncio.run(server.rows(ExpertUID(uid=asked if isinstance(asked, str) else json.dumps(asked)), None))
    return MSGPackSerializer.loads(answer.serialized_info)


def test_rows_are_those_of_the_training_split(server, small_split):
    assert rows(server, []) == {"size": 40, "length": 8, "pairs": False, "padding": False}
    told = rows(server, [3, 39, 0])
    ids = np.frombuffer(told["ids"], dtype="<i4").reshape(3, 8)
    assert (ids == small_split.rows(np.array([3, 39, 0]))[0]).all()


@pytest.mark.parametrize("asked", ["nonsense", [-1], [40], [[1]], ["a"], {"a": 1}, 3, None, [0] * (MOST_ROWS + 1),
                                   "[" * 100_000])  # fmt: skip
def test_what_is_no_list_of_numbers_is_answered_with_the_problem(server, asked):
    assert list(rows(server, asked)) == ["problem"]


def reach(server, who, ports):
    text = ports if isinstance(ports, str) else json.dumps(ports)
    answer = asyncio.run(server.reach(ExpertUID(uid=text), SimpleNamespace(remote_id=who)))
    return json.loads(answer.serialized_info)


def test_who_asks_is_dialled_back_at_its_own_address(server):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert reach(server, "asha", [port]) == {"hosts": ["127.0.0.1"], "reachable": True}
        assert not reach(server, "nobody", [port])["reachable"]
        assert not reach(server, "far", [port])["reachable"]  # through a relay: that is not its own address
    assert not reach(server, "asha", [port])["reachable"]


@pytest.mark.parametrize("ports", ["nonsense", [], [0], [70_000], ["x"], "{}", "7"])
def test_nonsense_is_not_dialled(server, ports):
    assert not reach(server, "asha", ports)["reachable"]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("/ip4/203.0.113.7/tcp/1", "203.0.113.7"),
        ("/ip6/2001:db8::1/tcp/1/p2p/Qm", "2001:db8::1"),
        ("/ip4/nonsense/tcp/1", None),
        ("/dns4/example.org/tcp/1", None),
        ("/ip4/203.0.113.7/tcp/1/p2p/Qm/p2p-circuit", None),
        ("", None),
    ],
)
def test_the_host_of_an_address(address, host):
    assert host_of(address) == host


@pytest.fixture
def direct(server, monkeypatch):
    """Questions reach the server without a network; counted by their names."""
    asked: list[str] = []

    async def pieces_of(p2p, peer, name):
        asked.append(name)
        async for piece in server.file(ExpertUID(uid=name), None):
            yield piece.serialized_info

    monkeypatch.setattr(fetching, "ask", lambda dht, what: asyncio.run(what(None)))
    monkeypatch.setattr(fetching, "pieces_of", pieces_of)
    monkeypatch.setattr(fetching.asyncio, "sleep", no_pause)

    def tell(dht, peer, name, text, seconds=0.0):
        asked.append(text)
        return asyncio.run(server.rows(ExpertUID(uid=text), None)).serialized_info

    monkeypatch.setattr(fetching, "tell", tell)
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)
    return asked


async def no_pause(seconds):
    return None


def test_a_remote_split_is_the_split(direct, small_split):
    split = fetching.RemoteSplit(None, "coordinator")
    assert (len(split), split.sequence_length, split.has_pairs, split.has_padding) == (40, 8, False, False)
    wanted = np.array([5, 1, 39, 5])
    for one, other in zip(split.rows(wanted), small_split.rows(wanted), strict=True):
        assert (one == other).all()
        assert one.dtype == other.dtype


def test_rows_that_come_next_are_there_when_they_are_needed(direct, small_split):
    split = fetching.RemoteSplit(None, "coordinator")
    split.expect(np.arange(10, 20))
    assert (split.rows(np.arange(10, 15))[0] == small_split.rows(np.arange(10, 15))[0]).all()
    before = len(direct)
    assert (split.rows(np.arange(15, 20))[0] == small_split.rows(np.arange(15, 20))[0]).all()
    assert len(direct) == before
    split.rows(np.arange(15, 20))  # those that were used are not kept
    assert len(direct) == before + 1


@pytest.fixture
def wanted(small_artifact, tmp_path):
    store = Store(tmp_path / "store")
    store.create()
    return Source(path=PLACE, digest=verified_record(small_artifact).digest), store


def test_an_artifact_is_brought_whole_and_verifies(direct, wanted, small_artifact):
    source, store = wanted
    folder = fetching.fetch(None, "coordinator", source, store)
    assert folder == store.root / PLACE
    assert verified_record(folder, hashes=True).digest == source.digest
    assert list((store.root / "work" / "fetched").iterdir()) == []


def test_what_an_earlier_attempt_has_brought_is_not_brought_again(direct, wanted, small_artifact):
    source, store = wanted
    half = store.root / "work" / "fetched" / source.digest[:16]
    (half / "data").mkdir(parents=True)
    (half / "config.json").write_bytes((small_artifact / "config.json").read_bytes())
    (half / "data" / "train-00000.arrow").write_bytes(b"cut off")
    fetching.fetch(None, "coordinator", source, store)
    assert direct == [f"{PLACE}/record.json", f"{PLACE}/data/train-00000.arrow"]


def test_a_damaged_artifact_goes_to_the_trash(direct, wanted):
    source, store = wanted
    (store.root / PLACE).mkdir(parents=True)
    (store.root / PLACE / "left").write_text("?")
    assert verified_record(fetching.fetch(None, "coordinator", source, store))
    assert [path.name for path in store.root.glob("trash/*/*")] == ["left"]


def test_another_artifact_than_the_manifests_is_refused(direct, wanted):
    source, store = wanted
    other = source.model_copy(update={"digest": "0" * 64})
    with pytest.raises(StageError, match="has another one than its manifest says"):
        fetching.fetch(None, "coordinator", other, store)
    assert not (store.root / PLACE).exists()


def test_a_file_with_another_content_is_asked_for_again_and_then_refused(direct, wanted, small_artifact):
    source, store = wanted
    (small_artifact / "config.json").write_text("y" * (2**18 + 5))
    with pytest.raises(StageError, match=r"config.json: it does not come whole: 262149 bytes of 262149, or another"):
        fetching.fetch(None, "coordinator", source, store)
    assert direct.count(f"{PLACE}/config.json") == fetching.ATTEMPTS
    assert not (store.root / PLACE).exists()


def test_a_record_that_names_files_outside_is_refused(direct, wanted, small_artifact):
    source, store = wanted
    record = json.loads((small_artifact / "record.json").read_text())
    record["outputs"]["../../escaped"] = record["outputs"].pop("config.json")
    (small_artifact / "record.json").write_text(json.dumps(record))
    with pytest.raises(StageError, match="names files outside of it"):
        fetching.fetch(None, "coordinator", source, store)


def test_an_artifact_that_the_disk_has_no_room_for_is_refused(direct, wanted, monkeypatch):
    source, store = wanted
    monkeypatch.setattr(fetching, "SPARE", 2**60)
    with pytest.raises(UserError, match="give --store a larger disk, or read the corpus as it is needed: --stream"):
        fetching.fetch(None, "coordinator", source, store)


def test_a_coordinator_that_is_away_for_a_while_is_waited_for(direct, server, monkeypatch):
    split, tell, failures = fetching.RemoteSplit(None, "coordinator"), fetching.tell, iter(range(7))

    def away(*arguments):
        if next(failures, None) is not None:
            raise ConnectionError("nobody there")
        return tell(*arguments)

    monkeypatch.setattr(fetching, "tell", away)
    assert split.rows(np.array([1]))[0].shape == (1, 8)
    monkeypatch.setattr(fetching, "ROW_SECONDS", 0.2)
    monkeypatch.setattr(fetching, "tell", lambda *_: 1 / 0)
    with pytest.raises(StageError, match=r"does not send rows: ZeroDivisionError.*; is it running\? Join again"):
        split.rows(np.array([2]))


def test_a_coordinator_that_says_no_rows_ends_in_one_line(direct, server, monkeypatch):
    split = fetching.RemoteSplit(None, "coordinator")
    with pytest.raises(StageError, match="does not send rows: up to 512 numbers below 40"):
        split.rows(np.array([40]))
