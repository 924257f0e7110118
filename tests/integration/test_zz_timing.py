"""Temporary: how long a start takes."""

import time


def test_timing(postgres, database, new_daemon):
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    times = []
    for _ in range(8):
        daemon.start().wait_state("streaming")
        started = daemon._lines()
        a = [l for l in started if l["event"] == "started"][-1]
        b = [l for l in started if l["event"] == "streaming"][-1]
        times.append((a["timestamp"], b["timestamp"]))
        postgres.execute("INSERT INTO t VALUES (%s)", _, dbname=database)
        time.sleep(1)
        assert daemon.stop() == 0
    from datetime import datetime

    p = lambda s: datetime.fromisoformat(s.replace("Z", "+00:00"))
    print("TIMES", [round((p(b) - p(a)).total_seconds(), 3) for a, b in times])
