package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Atlas is what a stored atlas says about itself; the document is read apart.
type Atlas struct {
	ID        string
	Name      string
	Job       string // "" = imported or made without a job
	Model     string
	ModelHash string
	Numerics  string
	ProbeHash string
	Summary   json.RawMessage // JSON object
	Size      int64           // bytes of the document
	Created   time.Time
}

// MaxDocument is the largest document that SaveAtlas takes, in bytes.
const MaxDocument = 256 << 20

const (
	atlasColumns = `id, name, job, model, model_hash, numerics, probe_hash, summary, size, created`

	sqlAtlas    = `SELECT ` + atlasColumns + ` FROM atlas WHERE id = ?`
	sqlAtlases  = `SELECT ` + atlasColumns + ` FROM atlas WHERE ?1 IN ('', model_hash) ORDER BY seq DESC`
	sqlDocument = `SELECT a.size, d.gzip FROM atlas a JOIN atlas_document d ON d.atlas = a.seq WHERE a.id = ?`
	sqlAddAtlas = `INSERT INTO atlas (id, name, job, model, model_hash, numerics, probe_hash, summary, size, created)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlAddDocument = `INSERT INTO atlas_document (atlas, gzip) VALUES (?, ?)`
	sqlSetDocument = `UPDATE atlas_document SET gzip = ?2 WHERE atlas = (SELECT seq FROM atlas WHERE id = ?1)`
	sqlSetSize     = `UPDATE atlas SET size = ?2 WHERE id = ?1`
	sqlRenameAtlas = `UPDATE atlas SET name = ?2 WHERE id = ?1`
	sqlDeleteAtlas = `DELETE FROM atlas WHERE id = ?`
)

func scanAtlas(row interface{ Scan(...any) error }) (a Atlas, err error) {
	var summary string
	var created int64
	err = row.Scan(&a.ID, &a.Name, &a.Job, &a.Model, &a.ModelHash, &a.Numerics, &a.ProbeHash, &summary, &a.Size, &created)
	a.Summary, a.Created = json.RawMessage(summary), moment(created)
	return a, err
}

// SaveAtlas stores a document under a new id; ID, Size and Created of a are set by the store. Kept compressed.
func (s *Store) SaveAtlas(ctx context.Context, a Atlas, document []byte) (saved Atlas, err error) {
	const doing = "saving atlas"
	summary, err := object("summary", a.Summary)
	if err != nil {
		return Atlas{}, fail(doing, err)
	}
	packed, err := compress(document)
	if err != nil {
		return Atlas{}, fail(doing, err)
	}
	id := newID()
	err = s.write(ctx, doing, func(tx *sql.Tx) error {
		result, err := tx.Exec(sqlAddAtlas, id, clean(a.Name), a.Job, a.Model, a.ModelHash, a.Numerics, a.ProbeHash, summary,
			len(document), s.now().UnixMilli())
		if err != nil {
			return err
		}
		seq, err := result.LastInsertId()
		if err != nil {
			return err
		}
		if _, err := tx.Exec(sqlAddDocument, seq, packed); err != nil {
			return err
		}
		saved, err = scanAtlas(tx.QueryRow(sqlAtlas, id))
		return err
	})
	return saved, err
}

// compress packs a document of at most MaxDocument bytes.
func compress(document []byte) ([]byte, error) {
	if len(document) > MaxDocument {
		return nil, fmt.Errorf("%w: document of %d bytes: at most %d", ErrInvalid, len(document), MaxDocument)
	}
	var packed bytes.Buffer
	pack := gzip.NewWriter(&packed)
	if _, err := pack.Write(document); err != nil {
		return nil, err
	}
	if err := pack.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// ReplaceAtlasDocument writes another document over that of an atlas; the description stays.
func (s *Store) ReplaceAtlasDocument(ctx context.Context, id string, document []byte) error {
	doing := "replacing document of atlas " + id
	packed, err := compress(document)
	if err != nil {
		return fail(doing, err)
	}
	return s.write(ctx, doing, func(tx *sql.Tx) error {
		if err := changeOne(tx, sqlSetSize, id, len(document)); err != nil {
			return err
		}
		return changeOne(tx, sqlSetDocument, id, packed)
	})
}

// Atlas reads one description.
func (s *Store) Atlas(ctx context.Context, id string) (Atlas, error) {
	a, err := scanAtlas(s.reader.QueryRowContext(ctx, sqlAtlas, id))
	return a, failRead(ctx, "reading atlas "+id, err)
}

// AtlasDocument reads the document of an atlas, as it was saved.
func (s *Store) AtlasDocument(ctx context.Context, id string) ([]byte, error) {
	doing := "reading document of atlas " + id
	var size int64
	var packed []byte
	if err := s.reader.QueryRowContext(ctx, sqlDocument, id).Scan(&size, &packed); err != nil {
		return nil, failRead(ctx, doing, err)
	}
	unpack, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, failRead(ctx, doing, fmt.Errorf("%w: %w", ErrCorrupt, err))
	}
	// Never more than was saved, whatever the bytes say.
	document, err := io.ReadAll(io.LimitReader(unpack, min(size, MaxDocument)+1))
	if err == nil && int64(len(document)) != size {
		err = fmt.Errorf("more or fewer than %d bytes", size)
	}
	if err != nil {
		return nil, failRead(ctx, doing, fmt.Errorf("%w: %w", ErrCorrupt, err))
	}
	return document, nil
}

// Atlases lists the atlases, newest first; modelHash "" = of every model.
func (s *Store) Atlases(ctx context.Context, modelHash string) ([]Atlas, error) {
	list, err := query(ctx, s.reader, func(rows *sql.Rows) (Atlas, error) { return scanAtlas(rows) }, sqlAtlases, modelHash)
	return list, failRead(ctx, "listing atlases", err)
}

// RenameAtlas sets the name.
func (s *Store) RenameAtlas(ctx context.Context, id, name string) error {
	return s.change(ctx, "renaming atlas "+id, sqlRenameAtlas, id, clean(name))
}

// DeleteAtlas removes an atlas for good.
func (s *Store) DeleteAtlas(ctx context.Context, id string) error {
	return s.change(ctx, "deleting atlas "+id, sqlDeleteAtlas, id)
}
