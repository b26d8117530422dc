package store

import (
	"context"
	"errors"
	"io"
)

// ExportMarkdown writes the branch shown of a conversation as Markdown.
func (s *Store) ExportMarkdown(ctx context.Context, w io.Writer, conversation string) error {
	return errors.ErrUnsupported
}

// ExportJSON writes whole conversations with all branches and statistics (without the blobs of tokens and routing).
// No id = all that are not deleted.
func (s *Store) ExportJSON(ctx context.Context, w io.Writer, conversations ...string) error {
	return errors.ErrUnsupported
}

// ImportJSON adds the conversations of an ExportJSON file under new ids, all or none, and returns the ids.
func (s *Store) ImportJSON(ctx context.Context, r io.Reader) ([]string, error) {
	return nil, errors.ErrUnsupported
}
