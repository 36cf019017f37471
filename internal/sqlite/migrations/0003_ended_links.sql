-- Links that were revoked or used before they expire. A link itself is signed
-- and stands nowhere. The time is in milliseconds since 1970, in UTC.
CREATE TABLE ended_links (
    id      TEXT    NOT NULL PRIMARY KEY,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
