package native

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// attachLoop attaches file to a free loop device that detaches itself when
// the last user is gone. Close the device once it is mounted. A direct one
// passes by the cache of the host's file system, if that one can.
func attachLoop(file string, direct bool) (*os.File, error) {
	back, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices are not to be had (modprobe loop): %w", err)
	}
	defer control.Close()
	config := &unix.LoopConfig{Fd: uint32(back.Fd()), Size: blockSize, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR, File_name: loopName(file)}}
	if direct {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	// Others on the host look for free devices too: whoever configures one
	// first has it, the other gets EBUSY and asks again.
	for range 1000 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("finding a free loop device: %w", err)
		}
		dev, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attaching a loop device: %w", err)
		}
	}
	return nil, errors.New("no free loop device after 1000 attempts")
}

// openLoop opens /dev/loop<n>, making the node where nothing else does, as in
// a container.
func openLoop(n int) (*os.File, error) {
	path := fmt.Sprintf("/dev/loop%d", n)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("making %s: %w", path, err)
		}
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	return f, err
}

// loopName is what the kernel keeps with a device to tell its file by. The name
// of the file itself may be too long.
func loopName(file string) (name [64]byte) {
	abs, err := filepath.Abs(file)
	if err != nil {
		abs = file
	}
	copy(name[:63], fmt.Sprintf("belljar-%x", sha256.Sum256([]byte(abs))))
	return name
}

// awaitDetached returns when no loop device holds file any more. A device goes
// with the last mount of it, and a mount with the last process in its
// namespace, both a little after whoever asked for it has gone on. A file that
// is mounted a second time meanwhile is damaged.
func awaitDetached(ctx context.Context, file string) error {
	const most = 50 * time.Millisecond
	name := loopName(file)
	for pause := time.Millisecond; ; pause = min(2*pause, most) {
		attached, err := loopHolds(name)
		if err != nil || !attached {
			return err
		}
		// The kernel has no event for it that one could wait for.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("the writable layer is still in use: %w", context.Cause(ctx))
		}
	}
}

// loopHolds is whether a device has that name.
func loopHolds(name [64]byte) (bool, error) {
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return false, err
	}
	for _, dir := range bound {
		dev, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(dir)), os.O_RDONLY, 0)
		if err != nil {
			continue // it has gone, or its node was never made and it is not ours
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		dev.Close()
		if err == nil && info.File_name == name {
			return true, nil
		}
	}
	return false, nil
}
