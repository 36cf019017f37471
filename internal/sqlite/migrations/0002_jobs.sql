-- Times are milliseconds since 1970 in UTC, timeouts milliseconds. ended is
-- null while the job runs; outcome is JSON.
CREATE TABLE jobs (
    id          TEXT    NOT NULL PRIMARY KEY,
    subject     TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    sandbox     TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    title       TEXT    NOT NULL,
    interactive INTEGER NOT NULL,
    begun       INTEGER NOT NULL,
    timeout     INTEGER NOT NULL,
    ended       INTEGER,
    outcome     BLOB
) STRICT;

CREATE INDEX jobs_of ON jobs (subject, begun);
CREATE INDEX jobs_ended ON jobs (ended);
