package mcpserver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"belljar/internal/sandbox"

	"github.com/google/jsonschema-go/jsonschema"
)

// An argument is one that a tool takes.
type argument struct {
	name string
	want string // its type, in words
	into any    // a pointer
}

// readArguments decodes the arguments of a call. Null is the same as absent.
// The error, a *sandbox.RequestError, names the argument and what would be
// right; a message of the JSON decoder would speak of Go.
func readArguments(tool string, raw json.RawMessage, args []argument) error {
	given := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return refuse("arguments: want a JSON object")
		}
	}
	for _, a := range args {
		value, ok := given[a.name]
		delete(given, a.name)
		if !ok || string(value) == "null" {
			continue
		}
		if err := json.Unmarshal(value, a.into); err != nil {
			return refuse("argument %q: want %s", a.name, a.want)
		}
	}
	for name := range sorted(given) {
		var known []string
		for _, a := range args {
			known = append(known, a.name)
		}
		if len(known) == 0 {
			return refuse("unknown argument %.100q; %s takes none", name, tool)
		}
		return refuse("unknown argument %.100q; %s takes %s", name, tool, strings.Join(known, ", "))
	}
	return nil
}

func refuse(format string, args ...any) error {
	return &sandbox.RequestError{Message: fmt.Sprintf(format, args...)}
}

// decodeBase64 decodes base64 as clients and models write it: with or without
// padding and line breaks, in the standard or the URL-safe alphabet.
func decodeBase64(text string) ([]byte, error) {
	clean := make([]byte, 0, len(text))
	for _, c := range []byte(text) {
		switch c {
		case '\r', '\n', '\t', ' ':
			continue
		case '-':
			c = '+'
		case '_':
			c = '/'
		}
		clean = append(clean, c)
	}
	body := bytes.TrimRight(clean, "=")
	data := make([]byte, base64.RawStdEncoding.DecodedLen(len(body)))
	n, err := base64.RawStdEncoding.Decode(data, body)
	var corrupt base64.CorruptInputError
	switch {
	case len(clean)-len(body) > 2:
		return nil, errors.New("the content is not base64: too many = at its end")
	case errors.As(err, &corrupt) && int(corrupt) < len(body):
		return nil, fmt.Errorf("the content is not base64: %q at position %d", body[corrupt], corrupt)
	case err != nil:
		return nil, errors.New("the content is not base64: its end is missing")
	}
	return data[:n], nil
}

// schemaFor derives a schema from T, without the properties left out. Objects
// stay open, so that a client with an older schema takes a newer result.
func schemaFor[T any](leaveOut ...string) *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("deriving a schema: %v", err)) // the types are constants
	}
	for _, name := range leaveOut {
		delete(s.Properties, name)
		s.PropertyOrder = slices.DeleteFunc(s.PropertyOrder, func(p string) bool { return p == name })
	}
	simplify(s)
	return s
}

// simplify opens objects, and drops null from the types: nothing here is ever
// null, and models take a union for an invitation.
func simplify(s *jsonschema.Schema) {
	if i := slices.Index(s.Types, "null"); i >= 0 && len(s.Types) == 2 {
		s.Type, s.Types = s.Types[1-i], nil
	}
	if s.Type == "object" && s.Properties != nil {
		s.AdditionalProperties = nil
	}
	for _, p := range s.Properties {
		simplify(p)
	}
	if s.Items != nil {
		simplify(s.Items)
	}
}

// sorted ranges over a map in the order of its keys.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
