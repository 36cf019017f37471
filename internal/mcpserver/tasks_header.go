package mcpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxTaskBody bounds the body of a request about a task, in bytes.
const maxTaskBody = 1 << 20

// checkTaskHeader refuses a request about a task whose header Mcp-Name does not
// name it, as the extension asks: what is in between may have gone by the
// header. The SDK checks this header for the protocol's own methods, and that
// Mcp-Method, which is gone by here, is the body's.
func checkTaskHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Mcp-Method") {
		case tasksGet, tasksUpdate, tasksCancel:
		default:
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxTaskBody))
		if err != nil {
			var large *http.MaxBytesError
			if errors.As(err, &large) {
				http.Error(w, fmt.Sprintf("request body exceeds %d bytes", large.Limit), http.StatusRequestEntityTooLarge)
				return
			}
			http.Error(w, "failed to read body", http.StatusBadRequest)
			return
		}
		if msg, taskID, ok := readTaskID(body); ok && r.Header.Get("Mcp-Name") != taskID {
			refuseHeader(w, msg["id"], "the header Mcp-Name does not name the task in params.taskId")
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// readTaskID reads which task a message is about. What it cannot read is not
// ok, and is refused by the SDK in its own words. Maps, since a struct's fields
// would also take names in another case, which the SDK does not.
func readTaskID(body []byte) (msg map[string]json.RawMessage, id string, ok bool) {
	var params map[string]json.RawMessage
	if json.Unmarshal(body, &msg) != nil || json.Unmarshal(msg["params"], &params) != nil {
		return nil, "", false
	}
	return msg, id, json.Unmarshal(params["taskId"], &id) == nil
}

func refuseHeader(w http.ResponseWriter, id json.RawMessage, message string) {
	if id == nil {
		id = json.RawMessage("null")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	json.NewEncoder(w).Encode(map[string]any{
		"jsonrpc": "2.0", "id": id,
		"error": taskError{Code: mcp.CodeHeaderMismatch, Message: message},
	})
}
