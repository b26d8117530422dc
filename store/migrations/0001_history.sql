-- Times are unix milliseconds, durations nanoseconds; 0 stands for "not yet" and "never". Rows refer to each other by
-- seq, an explicit INTEGER PRIMARY KEY (so VACUUM keeps it); the outside sees only the random id. Within a table a
-- later row has the higher seq.

CREATE TABLE conversation (
  seq      INTEGER PRIMARY KEY,
  id       TEXT NOT NULL UNIQUE,
  title    TEXT NOT NULL,
  system   TEXT NOT NULL,
  settings TEXT NOT NULL CHECK (json_valid(settings)),
  pinned   INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
  leaf     INTEGER REFERENCES message (seq) ON DELETE SET NULL,
  created  INTEGER NOT NULL,
  updated  INTEGER NOT NULL,
  deleted  INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX conversation_order ON conversation (deleted, pinned DESC, updated DESC, seq DESC);
CREATE INDEX conversation_leaf ON conversation (leaf);

-- A parent is older than its children, so a path cannot be a circle and "ORDER BY seq" is its order. The reference to
-- the parent does not cascade: SQLite allows 1,000 levels of that, and a chat can be deeper; whole subtrees are deleted
-- in one statement instead.
CREATE TABLE message (
  seq          INTEGER PRIMARY KEY,
  id           TEXT NOT NULL UNIQUE,
  conversation INTEGER NOT NULL REFERENCES conversation (seq) ON DELETE CASCADE,
  parent       INTEGER REFERENCES message (seq),
  role         TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'tool')),
  content      TEXT NOT NULL,
  reasoning    TEXT NOT NULL DEFAULT '',
  state        TEXT NOT NULL CHECK (state IN ('complete', 'running', 'stopped', 'failed')),
  note         TEXT NOT NULL DEFAULT '',
  created      INTEGER NOT NULL,
  updated      INTEGER NOT NULL,
  CHECK (parent IS NULL OR parent < seq)
) STRICT;

CREATE INDEX message_siblings ON message (conversation, parent, seq);
CREATE INDEX message_parent ON message (parent);
CREATE INDEX message_running ON message (conversation) WHERE state = 'running';

CREATE TABLE turn (
  message    INTEGER PRIMARY KEY REFERENCES message (seq) ON DELETE CASCADE,
  model      TEXT NOT NULL,
  model_hash TEXT NOT NULL,
  numerics   TEXT NOT NULL,
  params     TEXT NOT NULL CHECK (json_valid(params)),
  prompt     INTEGER NOT NULL DEFAULT 0,
  cached     INTEGER NOT NULL DEFAULT 0,
  generated  INTEGER NOT NULL DEFAULT 0,
  queue      INTEGER NOT NULL DEFAULT 0,
  prefill    INTEGER NOT NULL DEFAULT 0,
  decode     INTEGER NOT NULL DEFAULT 0,
  bytes      INTEGER NOT NULL DEFAULT 0,
  finish     TEXT NOT NULL DEFAULT '',
  hash       TEXT NOT NULL DEFAULT '',
  started    INTEGER NOT NULL,
  finished   INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX turn_model ON turn (model_hash, started);

-- Apart from turn, so that a path is read without passing over the blobs' pages.
CREATE TABLE turn_blob (
  message INTEGER PRIMARY KEY REFERENCES turn (message) ON DELETE CASCADE,
  tokens  BLOB,
  routing BLOB
) STRICT;

-- The index holds finished texts only: a running answer is rewritten about once a second. Trigrams find parts of words
-- and text of scripts that write no spaces.
CREATE VIRTUAL TABLE message_search USING fts5 (
  content, content = 'message', content_rowid = 'seq', tokenize = 'trigram remove_diacritics 1'
);

CREATE TRIGGER message_search_insert AFTER INSERT ON message WHEN new.state <> 'running' BEGIN
  INSERT INTO message_search (rowid, content) VALUES (new.seq, new.content);
END;

CREATE TRIGGER message_search_delete AFTER DELETE ON message WHEN old.state <> 'running' BEGIN
  INSERT INTO message_search (message_search, rowid, content) VALUES ('delete', old.seq, old.content);
END;

CREATE TRIGGER message_search_leave AFTER UPDATE OF content, state ON message WHEN old.state <> 'running' BEGIN
  INSERT INTO message_search (message_search, rowid, content) VALUES ('delete', old.seq, old.content);
END;

CREATE TRIGGER message_search_enter AFTER UPDATE OF content, state ON message
WHEN old.state = 'running' AND new.state <> 'running' BEGIN
  INSERT INTO message_search (rowid, content) VALUES (new.seq, new.content);
END;

CREATE VIRTUAL TABLE conversation_search USING fts5 (
  title, content = 'conversation', content_rowid = 'seq', tokenize = 'trigram remove_diacritics 1'
);

CREATE TRIGGER conversation_search_insert AFTER INSERT ON conversation BEGIN
  INSERT INTO conversation_search (rowid, title) VALUES (new.seq, new.title);
END;

CREATE TRIGGER conversation_search_delete AFTER DELETE ON conversation BEGIN
  INSERT INTO conversation_search (conversation_search, rowid, title) VALUES ('delete', old.seq, old.title);
END;

CREATE TRIGGER conversation_search_update AFTER UPDATE OF title ON conversation BEGIN
  INSERT INTO conversation_search (conversation_search, rowid, title) VALUES ('delete', old.seq, old.title);
  INSERT INTO conversation_search (rowid, title) VALUES (new.seq, new.title);
END;

-- Usage has a row for each expert ever used: 20,000 for a large model, so the model's hash is kept once.
CREATE TABLE model (
  seq  INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE usage (
  model      INTEGER NOT NULL REFERENCES model (seq),
  layer      INTEGER NOT NULL CHECK (layer BETWEEN 0 AND 65535),
  expert     INTEGER NOT NULL CHECK (expert BETWEEN 0 AND 65535),
  selections INTEGER NOT NULL,
  mass       REAL NOT NULL,
  last_used  INTEGER NOT NULL,
  PRIMARY KEY (model, layer, expert)
) STRICT, WITHOUT ROWID;

CREATE TABLE probe_set (
  hash TEXT PRIMARY KEY,
  text BLOB NOT NULL
) STRICT;

CREATE TABLE job (
  seq        INTEGER PRIMARY KEY,
  id         TEXT NOT NULL UNIQUE,
  kind       TEXT NOT NULL,
  model      TEXT NOT NULL,
  model_hash TEXT NOT NULL,
  numerics   TEXT NOT NULL,
  probe_set  TEXT NOT NULL REFERENCES probe_set (hash),
  params     TEXT NOT NULL CHECK (json_valid(params)),
  state      TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
  done       INTEGER NOT NULL DEFAULT 0,
  total      INTEGER NOT NULL,
  error      TEXT NOT NULL DEFAULT '',
  created    INTEGER NOT NULL,
  started    INTEGER NOT NULL DEFAULT 0,
  finished   INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX job_state ON job (state, seq);
CREATE INDEX job_probe_set ON job (probe_set);

CREATE TABLE job_result (
  seq      INTEGER PRIMARY KEY,
  job      INTEGER NOT NULL REFERENCES job (seq) ON DELETE CASCADE,
  prompt   TEXT NOT NULL,
  numerics TEXT NOT NULL,
  data     BLOB NOT NULL,
  UNIQUE (job, numerics, prompt)
) STRICT;

CREATE TABLE atlas (
  seq        INTEGER PRIMARY KEY,
  id         TEXT NOT NULL UNIQUE,
  name       TEXT NOT NULL,
  job        TEXT NOT NULL, -- id, not a reference: an atlas outlives its job
  model      TEXT NOT NULL,
  model_hash TEXT NOT NULL,
  numerics   TEXT NOT NULL,
  probe_hash TEXT NOT NULL,
  summary    TEXT NOT NULL CHECK (json_valid(summary)),
  size       INTEGER NOT NULL,
  created    INTEGER NOT NULL
) STRICT;

CREATE INDEX atlas_model ON atlas (model_hash, seq);

CREATE TABLE atlas_document (
  atlas INTEGER PRIMARY KEY REFERENCES atlas (seq) ON DELETE CASCADE,
  gzip  BLOB NOT NULL
) STRICT;

CREATE TABLE setting (
  key     TEXT PRIMARY KEY,
  value   TEXT NOT NULL CHECK (json_valid(value)),
  updated INTEGER NOT NULL
) STRICT;
