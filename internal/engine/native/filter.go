package native

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A filterCache saves the OCI runtime from compiling the system call filter
// at every start, which is a third of a start's work for crun. The program is
// read back from the first sandbox, where the kernel holds what the runtime
// made of the configuration, and given to later ones as it is.
//
// It is for crun alone, which has an annotation for it, and for kernels that
// tell the program; without it, everything is as if there were no cache.
type filterCache struct {
	mu      sync.Mutex
	program string // in base64
	off     bool   // the kernel does not tell
}

// filterAnnotation makes crun use a program in place of the configuration's
// filter, crun(1).
const filterAnnotation = "run.oci.seccomp_bpf_data"

// known returns the program for a configuration's annotation, "" if there is
// none.
func (f *filterCache) known() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.program
}

// learn reads the program from a sandbox's process 1, unless it is known. What
// cannot be read is done without.
func (f *filterCache) learn(pid int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.program != "" || f.off {
		return nil
	}
	program, err := readFilter(pid)
	if err != nil {
		f.off = true
		return err
	}
	f.program = base64.StdEncoding.EncodeToString(program)
	return nil
}

// checkFilter looks whether the kernel holds a sandbox's agent to a filter,
// and keeps the first one for later starts. One that an earlier process started
// may have an older filter, and may have run scripts: nothing is learnt of it.
func (b *box) checkFilter(pid int) error {
	if err := filtered(pid); err != nil {
		return err
	}
	if e := b.e; b.ours.Load() && e.runtime.caches() {
		e.logFailure("keeping the system call filter for later starts", e.filter.learn(pid))
	}
	return nil
}

// caches is whether the runtime can be given a program.
func (r ociRuntime) caches() bool { return strings.HasPrefix(filepath.Base(r.path), "crun") }

// ptraceSeccompGetFilter is not in x/sys; linux/ptrace.h.
const ptraceSeccompGetFilter = 0x420c

// readFilter returns the system call filter of a process, as the array of
// struct sock_filter that seccomp(2) takes. The process must have one only. It
// is stopped for a moment.
func readFilter(pid int) (program []byte, err error) {
	// The thread that attaches must do all the rest. It ends then, and with it
	// its hold of the process, whatever went wrong.
	err = onOwnThread(func() (err error) {
		program, err = tracedFilter(pid)
		return err
	})
	return program, err
}

func tracedFilter(pid int) (_ []byte, err error) {
	if err := unix.PtraceSeize(pid); err != nil {
		return nil, fmt.Errorf("tracing process %d: %w", pid, err)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return nil, fmt.Errorf("stopping process %d: %w", pid, err)
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		if err == nil && !status.Stopped() {
			err = errors.New("it has ended")
		}
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("waiting for process %d: %w", pid, err)
		}
	}
	defer func() { err = errors.Join(err, unix.PtraceDetach(pid)) }()
	n, err := getFilter(pid, 0, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for the filter of process %d: %w", pid, err)
	}
	if _, err := getFilter(pid, 1, nil); !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("process %d has more than one filter: %w", pid, err)
	}
	const size = 8 // of a struct sock_filter
	program := make([]byte, n*size)
	if _, err := getFilter(pid, 0, program); err != nil {
		return nil, fmt.Errorf("reading the filter of process %d: %w", pid, err)
	}
	return program, nil
}

// getFilter returns how many instructions the filter of that index has, and
// copies them to buf unless that is empty.
func getFilter(pid, index int, buf []byte) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceSeccompGetFilter, uintptr(pid), uintptr(index),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// filtered reads whether the kernel holds a process to a filter, proc(5).
func filtered(pid int) error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	if !bytes.Contains(data, []byte("\nSeccomp:\t2\n")) {
		return errors.New("its process 1 is held to no system call filter")
	}
	return nil
}
