package daemon

// JSON from outside. Names count as they are spelled, and each may stand once: a reader that takes the last "model" of two and one
// that takes the first disagree about what was asked, and encoding/json takes "Model" for "model" besides.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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
	var syntax *jsontext.SyntacticError
	var kind *json.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		return badParam(fieldName(syntax.JSONPointer), "it stands twice (at byte %d)", syntax.ByteOffset)
	case errors.As(err, &syntax):
		return &apiError{http.StatusBadRequest, "", problem(KindUsage, "invalid_json", "", err, "the request's body is not JSON (at byte %d)", syntax.ByteOffset)}
	case errors.As(err, &kind):
		at := kind.JSONPointer
		for errors.As(kind.Err, &kind) { // of a type that reads itself
			at += kind.JSONPointer
		}
		return badParam(fieldName(at), "%s, want %s", jsonValue(kind), jsonKind(kind.GoType))
	}
	return &apiError{http.StatusBadRequest, "", problem(KindUsage, "invalid_json", "", err, "the request's body is not JSON")}
}

// fieldName spells a place in a body as in messages[0].content.
func fieldName(at jsontext.Pointer) string {
	var b strings.Builder
	for token := range at.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 32); err == nil && b.Len() > 0 {
			fmt.Fprintf(&b, "[%s]", token)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(clip(token, 50))
	}
	return b.String()
}

// jsonValue names what was found instead: a number with its digits where a whole one was wanted.
func jsonValue(e *json.SemanticError) string {
	switch e.JSONKind {
	case 'n':
		return "null"
	case 't', 'f':
		return "bool"
	case '"':
		return "string"
	case '0':
		if len(e.JSONValue) > 0 {
			return "number " + clip(string(e.JSONValue), 50)
		}
		return "number"
	case '{':
		return "object"
	}
	return "array"
}

// jsonKind names a Go type as a writer of JSON knows it.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}
