package daemon

// JSON from outside. Names count as they are spelled, and each may stand once: a reader that takes the last "model" of two and one
// that takes the first disagree about what was asked, and encoding/json takes "Model" for "model" besides.

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"covey/engine/jsonfault"
)

// decodeJSON reads one value. Text that is not UTF-8 is mended, as encoding/json does.
func decodeJSON(raw []byte, v any) error {
	return json.Unmarshal(raw, v, jsontext.AllowInvalidUTF8(true))
}

// decodeBody reads one JSON object from a request.
func decodeBody(r *http.Request, v any) *apiError {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return &apiError{http.StatusRequestEntityTooLarge, "", problem(KindUsage, "too_large", "", nil, "the request is larger than %d bytes", large.Limit)}
		}
		return &apiError{http.StatusBadRequest, "", problem(KindUsage, "bad_request", "", err, "the request's body could not be read")}
	}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' {
		return &apiError{http.StatusBadRequest, "", problem(KindUsage, "invalid_json", "", nil, "the request's body is not a JSON object")}
	}
	err = decodeJSON(raw, v)
	if err == nil {
		return nil
	}
	fault := jsonfault.Of(err)
	switch {
	case fault == nil:
		return &apiError{http.StatusBadRequest, "", problem(KindUsage, "invalid_json", "", err, "the request's body is not JSON")}
	case fault.Class == jsonfault.Twice:
		return badParam(fault.Field, "%s (at byte %d)", fault.Detail, fault.Offset)
	case fault.Class == jsonfault.Syntax:
		return &apiError{http.StatusBadRequest, "", problem(KindUsage, "invalid_json", "", err, "the request's body is not JSON (at byte %d)", fault.Offset)}
	}
	return badParam(fault.Field, "%s", fault.Detail)
}
