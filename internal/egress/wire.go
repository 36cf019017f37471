package egress

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"belljar/internal/engine"
)

// protocolVersion is that of the messages. A server talks to processes of the
// same version alone; see Client.
const protocolVersion = 1

// maxMessage bounds a message, in bytes: a policy may have many domains.
const maxMessage = 1 << 20

// Operations that a server asks for. All but opWatch are answered.
const (
	opHello     = "hello"     // who are you, and what have you got
	opAttach    = "attach"    // a sandbox, with its device and its process 1
	opDetach    = "detach"    // end its network
	opUse       = "use"       // what has it used
	opResolvers = "resolvers" // of the host, from now on
	opQuit      = "quit"      // end, if there is no sandbox
	opWatch     = "watch"     // keep this connection: events come on it, and its end is the process's
)

// event is a denial that a watcher hears of.
type event struct {
	Sandbox string        `json:"sandbox"`
	Denial  engine.Denial `json:"denial"`
}

type request struct {
	Op        string           `json:"op"`
	Sandbox   string           `json:"sandbox,omitempty"`
	Policy    *engine.Network  `json:"policy,omitempty"`
	Since     uint64           `json:"since,omitempty"`
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
}

type response struct {
	Error string `json:"error,omitempty"`
	// Unknown is whether it failed since the process has no such sandbox.
	Unknown bool `json:"unknown,omitempty"`
	// Program is which build of the program the process runs, and Sandboxes
	// are those that it has; for opHello.
	Program   string             `json:"program,omitempty"`
	Sandboxes []string           `json:"sandboxes,omitempty"`
	Use       *engine.NetworkUse `json:"use,omitempty"`
}

// send writes a message: its length in four bytes, and JSON. Files go along
// with the first byte.
func send(conn *net.UnixConn, message any, files ...*os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("a message of %d bytes: at most %d are taken", len(body), maxMessage)
	}
	packet := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	return withDescriptors(files, nil, func(fds []int) error {
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		n, _, err := conn.WriteMsgUnix(packet, rights, nil)
		if err == nil && n < len(packet) {
			_, err = conn.Write(packet[n:])
		}
		return err
	})
}

// withDescriptors calls f while the files' descriptors are held. Unlike
// File.Fd, it leaves them in their mode.
func withDescriptors(files []*os.File, fds []int, f func([]int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = withDescriptors(files[1:], append(fds, int(fd)), f) })
	return errors.Join(err, inner)
}

// maxFiles is how many files come with a message.
const maxFiles = 2

// receive reads a message, and the files that came along, which are the
// caller's to close, also after an error.
func receive(conn *net.UnixConn, message any) (files []*os.File, err error) {
	var size [4]byte
	rights := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := conn.ReadMsgUnix(size[:], rights)
	files = filesIn(rights[:oobn])
	if err != nil {
		return files, err
	}
	if n == 0 {
		return files, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, errors.New("too many files with a message")
	}
	if _, err := io.ReadFull(conn, size[n:]); err != nil {
		return files, err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length > maxMessage {
		return files, fmt.Errorf("a message of %d bytes: at most %d are taken", length, maxMessage)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(conn, body); err != nil {
		return files, err
	}
	return files, json.Unmarshal(body, message)
}

func filesIn(rights []byte) []*os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			_ = unix.SetNonblock(fd, true)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
