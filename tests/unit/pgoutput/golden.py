"""Each message as hand-written bytes, in the field order of PostgreSQL's documentation."""

from __future__ import annotations

from dataclasses import dataclass

from cdcd.pgoutput import messages as m


@dataclass(frozen=True)
class Golden:
    name: str
    message: m.AnyMessage
    payload: bytes
    in_stream: bool = False
    protocol_version: int = 1
    streaming_parallel: bool = False

    @property
    def session(self) -> dict[str, int | bool]:
        return {
            "in_stream": self.in_stream,
            "protocol_version": self.protocol_version,
            "streaming_parallel": self.streaming_parallel,
        }


def _hex(*fields: str) -> bytes:
    return b"".join(bytes.fromhex(field) for field in fields)


_LSN = "00000016 b374d848"
_END = "00000016 b374d878"
_TIME = "0002a3b1 c4d5e6f7"
_XID = "000002e7"
_LSN_N, _END_N, _TIME_N, _XID_N = 0x16B374D848, 0x16B374D878, 0x0002A3B1C4D5E6F7, 743
_GID = "67 69 64 00"

_RELATION_TAIL = (
    "00004001",
    "61 70 70 00",  # "app"
    "6f 72 64 00",  # "ord"
    "64",  # d
    "0002",
    "01 69 64 00 00000017 ffffffff",  # key "id" int4
    "00 6e 00 000006a4 000a0006",  # "n" numeric(10,2)
)
_RELATION = {
    "relid": 0x4001,
    "namespace": "app",
    "name": "ord",
    "identity": "d",
    "columns": (m.RelationColumn(True, "id", 23, -1), m.RelationColumn(False, "n", 1700, 655366)),
}
_NEW_BYTES = ("4e", "0004", "74 00000002 3432", "6e", "75", "62 00000000")
_NEW = m.TupleData((m.text(b"42"), m.NULL, m.UNCHANGED, m.binary(b"")))
_KEY = m.OldTuple(b"K", m.TupleData((m.text(b"7"), m.NULL)))
_KEY_BYTES = ("4b", "0002", "74 00000001 37", "6e")
_OLD = m.OldTuple(b"O", m.TupleData((m.text("é".encode()),)))
_OLD_BYTES = ("4f", "0001", "74 00000002 c3a9")

GOLDEN = (
    Golden(
        "Relation with identity NOTHING",
        m.Relation(1, "s", "t", "n", ()),
        _hex("52", "00000001", "7300", "7400", "6e", "0000"),
    ),
    Golden(
        "Relation with identity INDEX",
        m.Relation(1, "s", "t", "i", ()),
        _hex("52", "00000001", "7300", "7400", "69", "0000"),
    ),
    Golden(
        "Update with identity FULL",
        m.Update(0x4001, _OLD, _NEW),
        _hex("55", "00004001", *_OLD_BYTES, *_NEW_BYTES),
    ),
    Golden(
        "Update of the key in a stream",
        m.Update(0x4001, _KEY, _NEW, xid=_XID_N),
        _hex("55", _XID, "00004001", *_KEY_BYTES, *_NEW_BYTES),
        in_stream=True,
        protocol_version=2,
    ),
    Golden(
        "Delete by key in a stream",
        m.Delete(0x4001, _KEY, xid=_XID_N),
        _hex("44", _XID, "00004001", *_KEY_BYTES),
        in_stream=True,
        protocol_version=2,
    ),
    Golden("Delete with identity FULL", m.Delete(0x4001, _OLD), _hex("44", "00004001", *_OLD_BYTES)),
    Golden("Truncate CASCADE", m.Truncate(1, (1,)), _hex("54", "00000001", "01", "00000001")),
    Golden("Truncate RESTART IDENTITY", m.Truncate(2, (1,)), _hex("54", "00000001", "02", "00000001")),
    Golden("Begin", m.Begin(_LSN_N, _TIME_N, _XID_N), _hex("42", _LSN, _TIME, _XID)),
    Golden("Commit", m.Commit(_LSN_N, _END_N, _TIME_N), _hex("43 00", _LSN, _END, _TIME)),
    Golden(
        "Message",
        m.Message(True, _LSN_N, "out", b"\x00x"),
        _hex("4d 01", _LSN, "6f 75 74 00", "00000002", "00 78"),
    ),
    Golden(
        "Message, loose and empty",
        m.Message(False, _LSN_N, "", b""),
        _hex("4d 00", _LSN, "00", "00000000"),
        protocol_version=2,
    ),
    Golden(
        "Message in a stream",
        m.Message(True, _LSN_N, "p", b"x", xid=_XID_N),
        _hex("4d", _XID, "01", _LSN, "70 00", "00000001", "78"),
        in_stream=True,
        protocol_version=2,
    ),
    Golden("Origin", m.Origin(_LSN_N, "é"), _hex("4f", _LSN, "c3 a9 00")),
    Golden("Relation", m.Relation(**_RELATION), _hex("52", *_RELATION_TAIL)),  # type: ignore[arg-type]
    Golden(
        "Relation in a stream",
        m.Relation(**_RELATION, xid=_XID_N),  # type: ignore[arg-type]
        _hex("52", _XID, *_RELATION_TAIL),
        in_stream=True,
        protocol_version=2,
    ),
    Golden(
        "Relation of pg_catalog without columns",
        m.Relation(1, "", "t", "f", ()),
        _hex("52", "00000001", "00", "74 00", "66", "0000"),
    ),
    Golden("Type", m.Type(0x4002, "", "mood"), _hex("59", "00004002", "00", "6d 6f 6f 64 00")),
    Golden(
        "Type in a stream",
        m.Type(0x4002, "s", "m", xid=_XID_N),
        _hex("59", _XID, "00004002", "73 00", "6d 00"),
        in_stream=True,
        protocol_version=3,
    ),
    Golden("Insert", m.Insert(0x4001, _NEW), _hex("49", "00004001", *_NEW_BYTES)),
    Golden(
        "Insert in a stream",
        m.Insert(0x4001, _NEW, xid=_XID_N),
        _hex("49", _XID, "00004001", *_NEW_BYTES),
        in_stream=True,
        protocol_version=2,
    ),
    Golden("Update", m.Update(0x4001, None, _NEW), _hex("55", "00004001", *_NEW_BYTES)),
    Golden(
        "Update of the key", m.Update(0x4001, _KEY, _NEW), _hex("55", "00004001", *_KEY_BYTES, *_NEW_BYTES)
    ),
    Golden(
        "Update with identity FULL in a stream",
        m.Update(0x4001, _OLD, _NEW, xid=_XID_N),
        _hex("55", _XID, "00004001", *_OLD_BYTES, *_NEW_BYTES),
        in_stream=True,
        protocol_version=4,
    ),
    Golden("Delete by key", m.Delete(0x4001, _KEY), _hex("44", "00004001", *_KEY_BYTES)),
    Golden(
        "Delete with identity FULL in a stream",
        m.Delete(0x4001, _OLD, xid=_XID_N),
        _hex("44", _XID, "00004001", *_OLD_BYTES),
        in_stream=True,
        protocol_version=2,
    ),
    Golden("Truncate", m.Truncate(3, (1, 2)), _hex("54", "00000002", "03", "00000001", "00000002")),
    Golden(
        "Truncate in a stream",
        m.Truncate(0, (1,), xid=_XID_N),
        _hex("54", _XID, "00000001", "00", "00000001"),
        in_stream=True,
        protocol_version=2,
    ),
    Golden("Stream Start", m.StreamStart(_XID_N, True), _hex("53", _XID, "01"), protocol_version=2),
    Golden(
        "Stream Start of a later segment",
        m.StreamStart(_XID_N, False),
        _hex("53", _XID, "00"),
        protocol_version=2,
    ),
    Golden("Stream Stop", m.StreamStop(), _hex("45"), in_stream=True, protocol_version=2),
    Golden(
        "Stream Commit",
        m.StreamCommit(_XID_N, _LSN_N, _END_N, _TIME_N),
        _hex("63", _XID, "00", _LSN, _END, _TIME),
        protocol_version=2,
    ),
    Golden("Stream Abort", m.StreamAbort(_XID_N, 744), _hex("41", _XID, "000002e8"), protocol_version=4),
    Golden(
        "Stream Abort, parallel",
        m.StreamAbort(_XID_N, 744, _LSN_N, _TIME_N),
        _hex("41", _XID, "000002e8", _LSN, _TIME),
        protocol_version=4,
        streaming_parallel=True,
    ),
    Golden(
        "Begin Prepare",
        m.BeginPrepare(_LSN_N, _END_N, _TIME_N, _XID_N, "gid"),
        _hex("62", _LSN, _END, _TIME, _XID, _GID),
        protocol_version=3,
    ),
    Golden(
        "Prepare",
        m.Prepare(_LSN_N, _END_N, _TIME_N, _XID_N, "gid"),
        _hex("50 00", _LSN, _END, _TIME, _XID, _GID),
        protocol_version=3,
    ),
    Golden(
        "Commit Prepared",
        m.CommitPrepared(_LSN_N, _END_N, _TIME_N, _XID_N, "gid"),
        _hex("4b 00", _LSN, _END, _TIME, _XID, _GID),
        protocol_version=3,
    ),
    Golden(
        "Rollback Prepared",
        m.RollbackPrepared(_LSN_N, _END_N, _TIME_N, _TIME_N + 1, _XID_N, "gid"),
        _hex("72 00", _LSN, _END, _TIME, "0002a3b1 c4d5e6f8", _XID, _GID),
        protocol_version=3,
    ),
    Golden(
        "Stream Prepare",
        m.StreamPrepare(_LSN_N, _END_N, _TIME_N, _XID_N, "gid"),
        _hex("70 00", _LSN, _END, _TIME, _XID, _GID),
        protocol_version=3,
    ),
)
