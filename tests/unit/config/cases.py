"""Invalid configurations, each with the line that it must give. The file is named `prod.yaml`."""

# ruff: noqa: E501 - a line that cdcd prints is one line here

from __future__ import annotations

from dataclasses import dataclass, field

GOOD = """\
name: shop
source: {dsn: "postgresql://cdcd@db.example.com/shop"}
sink: {bootstrap_servers: "kafka:9092"}
registry: {url: "http://registry:8081"}
"""
"""The minimal valid configuration, with each section on one line."""


@dataclass(frozen=True)
class Wrong:
    """One mistake: the file's text, the environment variables, and the expected lines."""

    name: str
    text: str
    lines: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)


def _with(line: str) -> str:
    """Return the valid file with `line` in place of the line with the same first key, or after that line."""
    key = line.partition(":")[0]
    lines = [line if old.partition(":")[0] == key else old for old in GOOD.splitlines()]
    return "\n".join(lines if line in lines else [*lines, line]) + "\n"


def _source(rest: str) -> str:
    return _with(f'source: {{dsn: "postgresql://cdcd@db/shop", {rest}}}')


def _sink(rest: str) -> str:
    return _with(f'sink: {{bootstrap_servers: "kafka:9092", {rest}}}')


def _registry(rest: str) -> str:
    return _with(f'registry: {{url: "http://registry:8081", {rest}}}')


CASES: tuple[Wrong, ...] = (
    Wrong(
        "a name that others share slot and publication with",
        _with("name: Shop-EU"),
        (
            "name: slot and publication cannot be named after 'Shop-EU': other names would also give cdcd_shop_eu, because a slot's name has only a-z, 0-9 and _, 63 at most (from prod.yaml:1) - set source.slot.name and source.publication.names; earlier versions used cdcd_shop_eu",
        ),
    ),
    Wrong(
        "topics shared with what is no slot",
        _sink("topics: {shared_with: [Shop]}"),
        (
            "sink.topics.shared_with: names no slot: a slot's name is 1 to 63 of a-z, 0-9 and _ (from prod.yaml:3)",
        ),
    ),
    Wrong(
        "unknown key",
        _source("slot: {nmae: x}"),
        ("source.slot.nmae: unknown key (from prod.yaml:2) - did you mean name?",),
    ),
    Wrong(
        "unknown key far from any",
        _source("slot: {zzz: 1}"),
        ("source.slot.zzz: unknown key (from prod.yaml:2) - the keys here are name, create, failover",),
    ),
    Wrong(
        "unknown room",
        _with("registri: {}"),
        ("registri: unknown key (from prod.yaml:5) - did you mean registry?",),
    ),
    Wrong(
        "missing option",
        _with("sink: {delivery: exactly_once}"),
        (
            "sink.bootstrap_servers: required, but not set - set it in prod.yaml or as CDCD_SINK__BOOTSTRAP_SERVERS",
        ),
    ),
    Wrong(
        "missing room",
        GOOD.replace('registry: {url: "http://registry:8081"}\n', ""),
        ("registry: required, but not set - add it to prod.yaml",),
    ),
    Wrong(
        "room without keys",
        _with("sink:"),
        ("sink: expected a mapping of keys, found nothing (from prod.yaml:3)",),
    ),
    Wrong(
        "room is text",
        _with("source: postgresql://cdcd@db/shop"),
        ("source: expected a mapping of keys, found a single value (from prod.yaml:2)",),
    ),
    Wrong(
        "missing name",
        GOOD.replace("name: shop\n", ""),
        ("name: required, but not set - set it in prod.yaml or as CDCD_NAME",),
    ),
    Wrong(
        "name is not legal",
        _with("name: my shop"),
        (
            "name: must begin with a letter and have only letters, digits, '_', '-' and '.', 100 at most (from prod.yaml:1)",
        ),
    ),
    Wrong(
        "name is a number",
        _with("name: 7"),
        ("name: expected text, found 7 (from prod.yaml:1) - quote it",),
    ),
    Wrong(
        "dsn without database",
        _with('source: {dsn: "postgresql://cdcd@db"}'),
        (
            "source.dsn: names no database (from prod.yaml:2) - end the URL with /DATABASE or add dbname=DATABASE",
        ),
    ),
    Wrong(
        "dsn is no dsn",
        _with('source: {dsn: "db.example.com"}'),
        (
            "source.dsn: is neither a PostgreSQL URL nor key=value pairs (from prod.yaml:2) - write postgresql://USER@HOST:PORT/DATABASE",
        ),
    ),
    Wrong(
        "dsn with another scheme",
        _with('source: {dsn: "mysql://cdcd@db/shop"}'),
        (
            "source.dsn: is not a PostgreSQL URL (from prod.yaml:2) - write postgresql://USER@HOST:PORT/DATABASE",
        ),
    ),
    Wrong(
        "dsn with a bad port",
        _with('source: {dsn: "postgresql://cdcd@db:99999/shop"}'),
        ("source.dsn: has a port that is not a number from 1 to 65535 (from prod.yaml:2)",),
    ),
    Wrong(
        "dsn with an unencoded password",
        _with('source: {dsn: "postgresql://cdcd:se/cret@db/shop"}'),
        (
            "source.dsn: has a '@' or '/' where neither is allowed (from prod.yaml:2) - percent-encode them: %40, %2F",
        ),
    ),
    Wrong(
        "password file missing",
        _source("password_file: /nonexistent/password"),
        ("source.password_file: file /nonexistent/password does not exist (from prod.yaml:2)",),
    ),
    Wrong(
        "password file is a folder",
        _source("password_file: /"),
        ("source.password_file: / is not a file (from prod.yaml:2)",),
    ),
    Wrong(
        "two passwords",
        _with('source: {dsn: "postgresql://cdcd:se@db/shop", password: cret}'),
        (
            "source: the password is set more than once (from prod.yaml:2) - keep one of dsn, password, password_file",
        ),
    ),
    Wrong(
        "slot name",
        _source("slot: {name: CDCD-Shop}"),
        ("source.slot.name: a slot's name is 1 to 63 of a-z, 0-9 and _ (from prod.yaml:2)",),
    ),
    Wrong(
        "no publication",
        _source("publication: {names: []}"),
        ("source.publication.names: must name at least one publication (from prod.yaml:2)",),
    ),
    Wrong(
        "table without schema",
        _source("publication: {create: true, tables: [orders]}"),
        ("source.publication.tables: table 'orders' has no schema (from prod.yaml:2) - write SCHEMA.TABLE",),
    ),
    Wrong(
        "tables of a publication of others",
        _source("publication: {tables: [public.orders]}"),
        (
            "source.publication: tables applies only to a publication that cdcd creates (from prod.yaml:2) - set create: true or remove tables",
        ),
    ),
    Wrong(
        "protocol version",
        _source("protocol: {version: 5}"),
        ("source.protocol.version: expected auto, 1, 2, 3 or 4 (from prod.yaml:2)",),
    ),
    Wrong(
        "streaming needs version 2",
        _source("protocol: {version: 1, streaming: on}"),
        (
            "source.protocol: streaming: on needs protocol version 2 (from prod.yaml:2) - use version: 2 or auto",
        ),
    ),
    Wrong(
        "streaming word",
        _source("protocol: {streaming: paralel}"),
        (
            "source.protocol.streaming: expected auto, off, on or parallel, found 'paralel' (from prod.yaml:2) - did you mean parallel?",
        ),
    ),
    Wrong(
        "two_phase",
        _source("protocol: {two_phase: true, version: 2}"),
        ("source.protocol: two_phase needs protocol version 3 (from prod.yaml:2) - use version: 3 or auto",),
    ),
    Wrong(
        "origin",
        _source("protocol: {origin: all}"),
        ("source.protocol.origin: expected any or none, found 'all' (from prod.yaml:2)",),
    ),
    Wrong(
        "boolean",
        _source("protocol: {binary: maybe}"),
        ("source.protocol.binary: expected true or false, found 'maybe' (from prod.yaml:2)",),
    ),
    Wrong(
        "what becomes of a table that is taken out",
        _source("publication: {table_removed: ignore}"),
        ("source.publication.table_removed: expected warn or halt, found 'ignore' (from prod.yaml:2)",),
    ),
    Wrong(
        "WAL guard upside down",
        _source("wal_guard: {warn: 10GiB, critical: 1GiB}"),
        ("source.wal_guard: critical (1GiB) must be more than warn (10GiB) (from prod.yaml:2)",),
    ),
    Wrong(
        "WAL guard gives up before it warns",
        _source("wal_guard: {drop_slot: 32GiB}"),
        ("source.wal_guard: drop_slot (32GiB) must be more than critical (32GiB) (from prod.yaml:2)",),
    ),
    Wrong(
        "WAL guard without a unit",
        _source("wal_guard: {drop_slot: much}"),
        (
            "source.wal_guard.drop_slot: expected a size such as 16MiB, 64kB or a number of bytes "
            "(from prod.yaml:2)",
        ),
    ),
    Wrong(
        "silence",
        _source("silence_timeout_ms: 100"),
        ("source.silence_timeout_ms: must be 0, or at least 1000 (from prod.yaml:2)",),
    ),
    Wrong(
        "heartbeat",
        _source("heartbeat_interval_ms: 5"),
        ("source.heartbeat_interval_ms: must be 0, or at least 1000 (from prod.yaml:2)",),
    ),
    Wrong(
        "servers",
        _with("sink: {bootstrap_servers: kafka}"),
        ("sink.bootstrap_servers: server 1 is not HOST:PORT (from prod.yaml:3) - write HOST:PORT,HOST:PORT",),
    ),
    Wrong(
        "servers is a list",
        _with("sink: {bootstrap_servers: [a, b]}"),
        ("sink.bootstrap_servers: expected text, found a list (from prod.yaml:3)",),
    ),
    Wrong(
        "delivery word",
        _sink("delivery: exactly-once"),
        (
            "sink.delivery: expected exactly_once or at_least_once, found 'exactly-once' (from prod.yaml:3) - did you mean exactly_once?",
        ),
    ),
    Wrong(
        "template without table",
        _sink('topics: {template: "{name}.{schema}"}'),
        ("sink.topics.template: lacks {table}, so that two tables could share a topic (from prod.yaml:3)",),
    ),
    Wrong(
        "template placeholder",
        _sink('topics: {template: "{name}.{schema}.{tabel}"}'),
        (
            "sink.topics.template: unknown placeholder {tabel} (from prod.yaml:3) - use {name}, {schema} and {table}",
        ),
    ),
    Wrong(
        "template characters",
        _sink('topics: {template: "{name}/{schema}/{table}"}'),
        (
            "sink.topics.template: has a character, outside placeholders, other than letters, digits, '.', '_' and '-' (from prod.yaml:3)",
        ),
    ),
    Wrong(
        "partitions zero",
        _sink("topics: {partitions: 0}"),
        ("sink.topics.partitions: must be at least 1, found 0 (from prod.yaml:3)",),
    ),
    Wrong(
        "partitions boolean",
        _sink("topics: {partitions: true}"),
        ("sink.topics.partitions: expected a whole number, found true or false (from prod.yaml:3)",),
    ),
    Wrong(
        "partitions word",
        _sink("topics: {partitions: six}"),
        ("sink.topics.partitions: expected a whole number, found 'six' (from prod.yaml:3)",),
    ),
    Wrong(
        "size",
        _sink("commit: {max_bytes: 16 megs}"),
        (
            "sink.commit.max_bytes: expected a size such as 16MiB, 64kB or a number of bytes (from prod.yaml:3)",
        ),
    ),
    Wrong(
        "wait too long",
        _sink("commit: {max_wait_ms: 3600000}"),
        ("sink.commit.max_wait_ms: must be at most 60000, found 3600000 (from prod.yaml:3)",),
    ),
    Wrong(
        "wait too long for the transaction's timeout",
        _sink("transaction_timeout_ms: 20000, commit: {max_wait_ms: 15000}"),
        (
            "sink: commit.max_wait_ms has to be at most half of transaction_timeout_ms, 20000 (from prod.yaml:3)",
        ),
    ),
    Wrong(
        "policy for rows that are too large",
        _sink("too_large: dead_leter"),
        (
            "sink.too_large: expected halt or dead_letter, found 'dead_leter' (from prod.yaml:3) - did you mean dead_letter?",
        ),
    ),
    Wrong(
        "a topic of dead letters is not to be named",
        _sink("topics: {dead_letters: x}"),
        (
            "sink.topics.dead_letters: unknown key (from prod.yaml:3) - the keys here are template, create, partitions, replication_factor, properties, shared_with",
        ),
    ),
    Wrong(
        "policy for large transactions",
        _sink("large_transactions: {policy: part}"),
        (
            "sink.large_transactions.policy: expected halt or parts, found 'part' (from prod.yaml:3) - did you mean parts?",
        ),
    ),
    Wrong(
        "large transactions longer than the timeout",
        _sink("transaction_timeout_ms: 20000, large_transactions: {max_time_ms: 20000}"),
        (
            "sink: large_transactions.max_time_ms has to be below transaction_timeout_ms, 20000 (from prod.yaml:3)",
        ),
    ),
    Wrong(
        "size of large transactions",
        _sink("large_transactions: {max_bytes: -1}"),
        ("sink.large_transactions.max_bytes: must be at least 1 byte (from prod.yaml:3)",),
    ),
    Wrong(
        "property that delivery needs",
        _sink("properties: {acks: 1}"),
        ("sink.properties.acks: cannot be set here (from prod.yaml:3) - cdcd needs acks=all",),
    ),
    Wrong(
        "property given twice",
        _sink("properties: {sasl.password: a}, secret_files: {sasl.password: /etc/hostname}"),
        ("sink: sasl.password is set both in properties and in secret_files (from prod.yaml:3) - keep one",),
    ),
    Wrong(
        "secret file of a property",
        _sink("secret_files: {sasl.password: /nonexistent/kafka}"),
        ("sink.secret_files.sasl.password: file /nonexistent/kafka does not exist (from prod.yaml:3)",),
    ),
    Wrong(
        "registry none with what a registry would need",
        _with("registry: {url: none, auto_register: false, normalize: true}"),
        (
            "registry: auto_register, normalize applies to a registry, but url is none (from prod.yaml:4) - omit it",
        ),
    ),
    Wrong(
        "registry of another word",
        _with("registry: non"),
        ("registry: expected a mapping of keys, found a single value (from prod.yaml:4)",),
    ),
    Wrong(
        "registry with a bad second url",
        _with('registry: {url: "http://a:8081,b:8081"}'),
        (
            "registry.url: is not an http or https URL (from prod.yaml:4) - write https://HOST:PORT, or none to use no registry",
        ),
    ),
    Wrong(
        "registry with a password and a token",
        _registry("username: u, password_file: /etc/hostname, token_file: /etc/hostname"),
        (
            "registry: both a password and a token are set (from prod.yaml:4) - keep one of password_file, token_file",
        ),
    ),
    Wrong(
        "registry with a token twice",
        _registry("token_file: /etc/hostname, secret_files: {bearer.auth.token: /etc/hostname}"),
        ("registry: both bearer.auth.token and token_file are set (from prod.yaml:4) - keep one",),
    ),
    Wrong(
        "registry subjects",
        _registry("subjects: topic"),
        (
            "registry.subjects: expected topic_name, record_name or topic_record_name, found 'topic' (from prod.yaml:4) - did you mean topic_name?",
        ),
    ),
    Wrong(
        "registry url",
        _with("registry: {url: registry:8081}"),
        (
            "registry.url: is not an http or https URL (from prod.yaml:4) - write https://HOST:PORT, or none to use no registry",
        ),
    ),
    Wrong(
        "registry credentials in url",
        _with('registry: {url: "https://cdcd:cret@registry"}'),
        ("registry.url: has credentials in it (from prod.yaml:4) - use username and password_file",),
    ),
    Wrong(
        "registry user without password",
        _registry("username: cdcd"),
        (
            "registry: username and a password go together (from prod.yaml:4) - set username and password_file",
        ),
    ),
    Wrong(
        "compatibility word",
        _registry("compatibility: BACKWARDS"),
        (
            "registry.compatibility: expected BACKWARD, BACKWARD_TRANSITIVE, FORWARD, FORWARD_TRANSITIVE, FULL, FULL_TRANSITIVE or NONE, found 'BACKWARDS' (from prod.yaml:4) - did you mean BACKWARD?",
        ),
    ),
    Wrong(
        "form",
        _with("format: {value: flatt}"),
        ("format.value: expected envelope or flat, found 'flatt' (from prod.yaml:5) - did you mean flat?",),
    ),
    Wrong(
        "two added fields of one name",
        _with("format: {flat: {op: x, ts_ms: x}}"),
        ("format.flat: two of the fields have the same name (from prod.yaml:5)",),
    ),
    Wrong(
        "override without a change",
        _with("format: {overrides: [{table: a}]}"),
        (
            "format.overrides[0]: changes nothing (from prod.yaml:5) - set one of value, tombstones, key_columns,"
            " keyless, numeric_as, money_as, interval_as, json_as, special, max_value_bytes, oversized, placeholder",
        ),
    ),
    Wrong(
        "override of a table's option for a column",
        _with("format: {overrides: [{table: a, column: b, tombstones: true}]}"),
        ("format.overrides[0]: tombstones cannot be set for a column (from prod.yaml:5) - remove `column`",),
    ),
    Wrong(
        "override with nothing after its keys",
        _with(
            "format: {overrides: [{table: a, tombstones: null, key_columns: , value: , max_value_bytes: }]}"
        ),
        (
            *(
                f"format.overrides[0].{key}: expected a value, found nothing (from prod.yaml:5)"
                " - remove the key to use the default"
                for key in ("key_columns", "max_value_bytes", "tombstones", "value")
            ),
        ),
    ),
    Wrong(
        "condition of a copy without text",
        _with("snapshot: {overrides: [{table: a, where: ''}]}"),
        (
            "snapshot.overrides[0].where: expected a text, found an empty one (from prod.yaml:5)"
            " - leave the key out, or write its value",
        ),
    ),
    Wrong(
        "override with nothing as its patterns",
        _with("format: {overrides: [{table: a, column: , numeric_as: string}]}"),
        (
            "format.overrides[0].column: expected a value, found nothing (from prod.yaml:5)"
            " - remove the key to use the default",
        ),
    ),
    Wrong(
        "override with a pattern that is none",
        _with("format: {overrides: [{table: 'a(', tombstones: true}]}"),
        (
            "format.overrides[0].table: is not a regular expression: missing ), unterminated subpattern at position 1"
            r" (from prod.yaml:5) - write for example public\.orders",
        ),
    ),
    Wrong(
        "workers",
        _with("snapshot: {workers: 0}"),
        ("snapshot.workers: must be at least 1, found 0 (from prod.yaml:5)",),
    ),
    Wrong(
        "a copy without any column",
        _with("snapshot: {overrides: [{table: '.*', columns: []}]}"),
        (
            "snapshot.overrides[0]: chooses no column (from prod.yaml:5) - name columns, or set include: false",
        ),
    ),
    Wrong(
        "a topic of signals that Kafka refuses",
        _with("snapshot: {signals: {topic: 'a b'}}"),
        (
            "snapshot.signals.topic: a topic's name is 1 to 249 of letters, digits, '.', '_' and '-' (from prod.yaml:5)",
        ),
    ),
    Wrong(
        "a topic of signals that cdcd writes to",
        _with("snapshot: {signals: {topic: shop.__progress}}"),
        (
            "snapshot: signals.topic: shop.__progress is written by cdcd itself (from prod.yaml:5) - choose another topic",
        ),
    ),
    Wrong(
        "admin port",
        _with("admin: {port: 70000}"),
        ("admin.port: must be at most 65535, found 70000 (from prod.yaml:5)",),
    ),
    Wrong(
        "log level",
        _with("log: {level: warn}"),
        (
            "log.level: expected debug, info, warning or error, found 'warn' (from prod.yaml:5) - did you mean warning?",
        ),
    ),
    Wrong(
        "key given twice",
        GOOD + "name: other\n",
        ("name: set twice (from prod.yaml:5, first at line 1)",),
    ),
    Wrong(
        "tab",
        GOOD + "log:\n\tlevel: info\n",
        ("prod.yaml:6: is not YAML: a tab cannot indent; use spaces",),
    ),
    Wrong(
        "not closed",
        GOOD + "log: {level: info\n",
        ("prod.yaml:6: is not YAML: expected ',' or '}', but got '<stream end>'",),
    ),
    Wrong(
        "a list",
        "- name: shop\n",
        ("prod.yaml: must be a mapping of keys, found a list",),
    ),
    Wrong(
        "empty",
        "# nothing yet\n",
        ("prod.yaml: is empty",),
    ),
    Wrong(
        "alias",
        GOOD + "log: &log {level: info}\nformat: *log\n",
        ("format: aliases are not supported in this file (from prod.yaml:5)",),
    ),
    Wrong(
        "unknown alias",
        GOOD + "log: *hunter2\n",
        ("prod.yaml:5: is not YAML: found undefined alias ...",),
    ),
    Wrong(
        "tag",
        GOOD + "log: !hunter2 {level: info}\n",
        ("prod.yaml:5: is not YAML: could not determine a constructor for the tag ...",),
    ),
    Wrong(
        "several",
        "name: shop\nsuorce: {}\nsink: {delivery: no}\nadmin: {port: x}\n",
        (
            "suorce: unknown key (from prod.yaml:2) - did you mean source?",
            "sink.bootstrap_servers: required, but not set - set it in prod.yaml or as CDCD_SINK__BOOTSTRAP_SERVERS",
            "sink.delivery: expected exactly_once or at_least_once, found 'no' (from prod.yaml:3)",
            "admin.port: expected a whole number, found 'x' (from prod.yaml:4)",
            "registry: required, but not set - add it to prod.yaml",
            "source: required, but not set - add it to prod.yaml",
        ),
    ),
    Wrong(
        "variable with one underscore",
        GOOD,
        ("CDCD_SINK_DELIVERY: unknown variable - did you mean CDCD_SINK__DELIVERY?",),
        {"CDCD_SINK_DELIVERY": "at_least_once"},
    ),
    Wrong(
        "variable of no option",
        GOOD,
        ("CDCD_SOURCE__SLOT__NMAE: unknown variable - did you mean CDCD_SOURCE__SLOT__NAME?",),
        {"CDCD_SOURCE__SLOT__NMAE": "x"},
    ),
    Wrong(
        "word in a variable",
        GOOD,
        ("sink.delivery: expected exactly_once or at_least_once, found 'twice' (from CDCD_SINK__DELIVERY)",),
        {"CDCD_SINK__DELIVERY": "twice"},
    ),
    Wrong(
        "one text that may be several names",
        _source("publication: {names: 'odd \"name\", with, commas'}"),
        (
            "source.publication.names: a text with commas is ambiguous: one name or several (from prod.yaml:2) - write a list",
        ),
    ),
    Wrong(
        "a variable that begins like a list and is none",
        GOOD,
        (
            'source.publication.names: expected a JSON list (from CDCD_SOURCE__PUBLICATION__NAMES) - write ["a", "b"]',
        ),
        {"CDCD_SOURCE__PUBLICATION__NAMES": "[one, two]"},
    ),
    Wrong(
        "mapping in a variable",
        GOOD,
        ('sink.properties: expected a JSON object (from CDCD_SINK__PROPERTIES) - write {"key": "value"}',),
        {"CDCD_SINK__PROPERTIES": "a=b"},
    ),
    Wrong(
        "property in a variable",
        GOOD,
        ("sink.properties.acks: cannot be set here (from CDCD_SINK__PROPERTIES) - cdcd needs acks=all",),
        {"CDCD_SINK__PROPERTIES": '{"acks": "1"}'},
    ),
    Wrong(
        "password file in a variable",
        GOOD,
        ("source.password_file: file /nonexistent/x does not exist (from CDCD_SOURCE__PASSWORD_FILE)",),
        {"CDCD_SOURCE__PASSWORD_FILE": "/nonexistent/x"},
    ),
    Wrong(
        "number in a variable",
        GOOD,
        ("admin.port: expected a whole number, found 'http' (from CDCD_ADMIN__PORT)",),
        {"CDCD_ADMIN__PORT": "http"},
    ),
)
