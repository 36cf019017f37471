-- The token is kept as it is and not hashed: a file's directory carries it as
-- its name, so whoever can read the disk has it anyway, and the sweep needs it
-- to find the directory. The database is for its owner alone (mode 0600).
--
-- Times are milliseconds since 1970 in UTC.
CREATE TABLE artifacts (
    token   TEXT    NOT NULL PRIMARY KEY,
    file    TEXT    NOT NULL,
    path    TEXT    NOT NULL,
    bytes   INTEGER NOT NULL CHECK (bytes >= 0),
    sha256  TEXT    NOT NULL,
    mime    TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    run     TEXT    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
