-- The role and the publication of one cdcd, with the least privileges that cdcd needs.
-- Run with psql as a superuser or the database's owner, connected to the source database:
--   psql -v ON_ERROR_STOP=1 -v role=cdcd -v publication=cdcd_shop -v schema=shop -f role-and-publication.sql
-- Set the password afterwards with \password, so that it is in no file and no log. This script may be run again.

\if :{?role} \else \set role cdcd \endif
\if :{?publication} \else \set publication cdcd_shop \endif
\if :{?schema} \else \set schema public \endif

BEGIN;

-- No SUPERUSER, no BYPASSRLS, owner of nothing. REPLICATION lets it create and read logical slots.
SELECT format('CREATE ROLE %I LOGIN REPLICATION CONNECTION LIMIT 10', :'role')
WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = :'role') \gexec

-- cdcd's sessions (snapshot, catalog, monitoring) only read. Heartbeats are logical messages, which a read-only
-- transaction may write.
ALTER ROLE :"role" SET default_transaction_read_only = on;

SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), :'role') \gexec
GRANT USAGE ON SCHEMA :"schema" TO :"role";
-- For the initial snapshot. Name single tables, or columns, if cdcd may not read all of them.
GRANT SELECT ON ALL TABLES IN SCHEMA :"schema" TO :"role";

-- The tables' owner creates the publication, not cdcd, because the owner decides which data is published. Columns and
-- rows left out here never leave the server:  FOR TABLE shop.customers (id, name) WHERE (region = 'EU'), ...
SELECT format('CREATE PUBLICATION %I FOR TABLE %s WITH (publish_via_partition_root = true)', :'publication',
              string_agg(format('%I.%I', n.nspname, c.relname), ', ' ORDER BY c.relname))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :'schema' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND NOT EXISTS (SELECT 1 FROM pg_publication WHERE pubname = :'publication')
HAVING count(*) > 0 \gexec

COMMIT;

-- postgresql.conf:  wal_level = logical, and a free slot of max_replication_slots and of max_wal_senders; a change of
-- these needs a restart of the server. Also set max_slot_wal_keep_size, or a forgotten slot fills the disk.
-- pg_hba.conf (logical replication is matched by the database's name, `replication` means physical only):
--   hostssl  shop         cdcd  10.0.0.0/8  scram-sha-256
--   host     replication  cdcd  all         reject
