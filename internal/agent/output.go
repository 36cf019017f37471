package agent

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// output reads one stream of a job until the last process that holds the
// pipe's other end has closed it, in constant memory.
type output struct {
	pipe    *os.File
	settled chan struct{} // closed when all that the command wrote was taken

	logPath string // where it is for the agent
	logName string // what the status calls it
	logMax  int64
	log     *os.File // the reading goroutine's

	mu     sync.Mutex
	ended  bool            // the command has
	asking []chan struct{} // closed when all that is in the pipe was taken
	frozen bool            // what comes now is not the command's
	keep   int
	head   []byte
	tail   ring
	kept   Stream        // the counters and the log's name
	news   chan struct{} // closed when more was taken; nil while nobody waits
}

// pipeSize lets a busy writer run on while the reader is not scheduled.
const pipeSize = 256 << 10

// newOutput returns a stream and the end to give to the command.
func newOutput(keep int) (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	// The command expects a pipe that blocks. Only this end's description is
	// changed.
	if err := unix.SetNonblock(int(w.Fd()), false); err != nil {
		r.Close()
		w.Close()
		return nil, nil, err
	}
	unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize) // refused beyond a user's quota
	return outputOf(r, keep), w, nil
}

// outputOf reads a stream from one end of it.
func outputOf(r *os.File, keep int) *output {
	return &output{pipe: r, settled: make(chan struct{}), keep: keep, tail: ring{size: keep}}
}

// read takes what comes until the stream ends. After the command has ended,
// only the log goes on; reading does, so that a background process does not
// die of a broken pipe.
func (o *output) read() {
	defer o.pipe.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := o.pipe.Read(buf)
		o.take(buf[:n])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			// First, so that whoever interrupts from now on does so again.
			o.pipe.SetReadDeadline(time.Time{})
			o.drain(buf)
			o.answer(false)
		case err != nil:
			o.answer(true)
			o.closeLog()
			return
		}
	}
}

// answer tells those who wait that what was in the pipe is taken. At the end
// of the command, or of the stream, the stream freezes.
func (o *output) answer(end bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.asking {
		close(c)
	}
	o.asking = nil
	if (end || o.ended) && !o.frozen {
		o.frozen = true
		close(o.settled)
	}
}

// catchUp returns when all is taken that is in the pipe now.
func (o *output) catchUp() {
	taken := make(chan struct{})
	o.mu.Lock()
	if o.frozen {
		o.mu.Unlock()
		return
	}
	o.asking = append(o.asking, taken)
	o.mu.Unlock()
	o.pipe.SetReadDeadline(time.Unix(1, 0)) // interrupts the read
	<-taken
}

// settle returns when all is taken that the ended command had written, no
// matter who else still holds the pipe.
func (o *output) settle() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.pipe.SetReadDeadline(time.Unix(1, 0)) // interrupts the read
	<-o.settled
}

// drain takes what the pipe holds now. That is at most its capacity; more
// comes from somebody who still writes.
func (o *output) drain(buf []byte) {
	raw, err := o.pipe.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		left, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
		if err != nil {
			left = pipeSize
		}
		for left > 0 {
			n, err := unix.Read(int(fd), buf[:min(left, len(buf))])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n <= 0 {
				return
			}
			o.take(buf[:n])
			left -= n
		}
	})
}

// take adds p to the stream.
func (o *output) take(p []byte) {
	if len(p) == 0 {
		return
	}
	name, logged := o.writeLog(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept.Log, o.kept.LogBytes = name, logged
	if o.frozen {
		return
	}
	o.kept.Bytes += int64(len(p))
	if o.news != nil {
		close(o.news)
		o.news = nil
	}
	n := min(len(p), o.keep-len(o.head))
	o.head = append(o.head, p[:n]...)
	o.tail.write(p[n:])
}

// writeLog adds p to the log as far as it may grow and returns the log's name
// and size. An error, such as a full disk, ends the log and not the job.
func (o *output) writeLog(p []byte) (name string, size int64) {
	size = o.kept.LogBytes // written by this goroutine only
	if size == 0 && o.logMax > 0 {
		o.openLog()
	}
	if o.log != nil {
		n, err := o.log.Write(p[:min(int64(len(p)), o.logMax-size)])
		size += int64(n)
		if err != nil || size == o.logMax {
			o.closeLog()
		}
	}
	if size == 0 {
		return "", 0
	}
	return o.logName, size
}

func (o *output) openLog() {
	if os.MkdirAll(filepath.Dir(o.logPath), 0o755) != nil {
		return
	}
	// O_EXCL: never into what somebody has put there before.
	o.log, _ = os.OpenFile(o.logPath, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if o.log == nil {
		o.logMax = 0
	}
}

func (o *output) closeLog() {
	if o.log != nil {
		o.log.Close()
		o.log, o.logMax = nil, 0
	}
}

// stream describes the stream as it is now.
func (o *output) stream() Stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.kept
	s.Head = append([]byte(nil), o.head...)
	s.Tail = o.tail.bytes()
	return s
}

// since returns what came after the first at bytes, at most most of it, and
// what is closed when there is more to have than now.
func (o *output) since(at int64, most int) (Chunk, <-chan struct{}) {
	o.mu.Lock()
	total, logged := o.kept.Bytes, min(o.kept.LogBytes, o.kept.Bytes)
	c := Chunk{From: min(max(at, 0), total), Bytes: total}
	tail := total - int64(len(o.tail.buf))
	switch {
	case c.From < logged:
		// From the file, below.
	case c.From < int64(len(o.head)):
		c.Data = append(c.Data, o.head[c.From:min(int64(len(o.head)), c.From+int64(most))]...)
	default:
		c.From = max(c.From, min(tail, total))
		all := o.tail.bytes()
		c.Data = append(c.Data, all[c.From-tail:min(int64(len(all)), c.From-tail+int64(most))]...)
	}
	if o.news == nil {
		o.news = make(chan struct{})
	}
	news := o.news
	o.mu.Unlock()
	if c.From < logged {
		c.Data = o.readLog(c.From, min(int64(most), logged-c.From))
		if len(c.Data) == 0 { // somebody has removed it: go on behind
			return o.since(logged, most)
		}
	}
	return c, news
}

// readLog reads a part of the log, which a script may have changed or removed.
func (o *output) readLog(from, n int64) []byte {
	f, err := os.OpenFile(o.logPath, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	data := make([]byte, n)
	got, _ := f.ReadAt(data, from)
	return data[:got]
}

// written is how many bytes the command has written, those in the pipe
// included.
func (o *output) written() int64 {
	var inPipe int
	if raw, err := o.pipe.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { inPipe, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.Bytes + int64(inPipe)
}

// size is how many bytes are kept.
func (o *output) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.head) + len(o.tail.buf)
}

// forget lets go of the bytes kept.
func (o *output) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.head, o.tail = nil, ring{}
}

// ring keeps the last size bytes written.
type ring struct {
	size int
	buf  []byte // grows up to size
	next int    // where the oldest byte is once buf is full
}

func (r *ring) write(p []byte) {
	if len(p) >= r.size {
		r.buf, r.next = append(r.buf[:0], p[len(p)-r.size:]...), 0
		return
	}
	n := min(len(p), r.size-len(r.buf))
	r.buf = append(r.buf, p[:n]...)
	for p = p[n:]; len(p) > 0; {
		n := copy(r.buf[r.next:], p)
		p = p[n:]
		r.next = (r.next + n) % r.size
	}
}

func (r *ring) bytes() []byte {
	return append(append([]byte(nil), r.buf[r.next:]...), r.buf[:r.next]...)
}
