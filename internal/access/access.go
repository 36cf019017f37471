// Package access says who is calling.
package access

// Subject is who a call is made for: a signed-in user, or the local user. It
// is never the client program, of which one user has many.
type Subject struct {
	// ID is stable and unique, and safe to log.
	ID string
}

// Owner is the subject of the local user and of the server's own key.
var Owner = Subject{ID: "owner"}
