package engine

import (
	"errors"
	"fmt"
)

// Errors that callers decide on. Engines wrap them; test with errors.Is.
var (
	ErrNotFound   = errors.New("no such sandbox")
	ErrExists     = errors.New("sandbox exists")
	ErrNotRunning = errors.New("sandbox is not running")
	ErrRunning    = errors.New("sandbox is running")
	ErrNoImage    = errors.New("no such image")
	ErrClosed     = errors.New("engine is closed")
)

// HostFullError says that the host is too full for another sandbox.
type HostFullError struct {
	What string // what is short: "disk space on /var/lib/belljar"
	Free int64  // what is left, in bytes
	Need int64  // what must be left, in bytes; 0 if it is not space that is short
}

func (e *HostFullError) Error() string {
	if e.Need == 0 {
		return e.What
	}
	return fmt.Sprintf("%s is nearly used up: %d MiB free, %d MiB must stay free", e.What, e.Free>>20, e.Need>>20)
}
