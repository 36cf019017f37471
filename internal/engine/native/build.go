package native

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"belljar/internal/engine"
	"belljar/internal/image"
)

// buildPIDs bounds the processes of a build step. Nothing else is limited
// but what the host has: it is the operator's own Containerfile.
const buildPIDs = 4096

// RunStep implements image.Runner: it runs a command of a Containerfile with
// the isolation of a sandbox, but the host's network, on the image's layers
// with the step's upper directory on top.
func (e *Engine) RunStep(ctx context.Context, s image.Step) error {
	ids, err := e.ids.take()
	if err != nil {
		return err
	}
	defer e.ids.release(ids.slot)
	ns, err := e.ids.mappings(ids)
	if err != nil {
		return err
	}
	id := "build-" + strings.ToLower(rand.Text()[:12])
	p, group := place{id}, e.group(id)
	bundle, err := os.MkdirTemp(e.dir, scratch)
	if err != nil {
		return err
	}
	work := s.Upper + ".work"
	defer func() {
		e.logFailure("clearing a build step", errors.Join(
			e.runtime.delete(id), e.cg.end(group), e.ns.clear(p, group), os.RemoveAll(work), os.RemoveAll(bundle)))
	}()
	var user specs.User
	err = e.ns.do(func() error {
		if err := makeUpper(s.Upper, work, ids); err != nil {
			return err
		}
		// A step's files are flushed once, at its end: dpkg would wait for the
		// disk with each one. What a crash leaves of a step is not used.
		if err := mountRootfs(p, s.Lower, s.Upper, work, ns.image, "volatile"); err != nil {
			return err
		}
		user, err = lookupUser(p.rootfs(), s.User)
		return err
	})
	if err != nil {
		return err
	}
	trust, trustEnv := hostTrust(s.Env)
	c := container{
		rootfs: p.rootfs(), ids: ids, group: group, hostNet: true,
		argv: s.Argv, env: slices.Concat(trustEnv, s.Env), dir: s.Dir, user: user,
		limits: engine.Limits{PIDs: buildPIDs},
		mounts: slices.Concat(resolvConf(), trust),
	}
	if err := e.writeConfig(bundle, c); err != nil {
		return err
	}
	runErr := e.runtime.run(ctx, bundle, id, s.Output)
	if err := e.ns.do(p.clear); err != nil {
		return err
	}
	if err := unshift(s.Upper, ids); err != nil {
		return fmt.Errorf("giving a step's files their ids: %w", err)
	}
	var exit *exec.ExitError
	if errors.As(runErr, &exit) && ctx.Err() == nil {
		return &image.ExitError{Code: exit.ExitCode()}
	}
	return errors.Join(ctx.Err(), runErr)
}

// resolvConf shows the host's resolver, if it has one, to a step that uses its
// network.
func resolvConf() []specs.Mount {
	const file = "/etc/resolv.conf"
	if _, err := os.Stat(file); err != nil {
		return nil
	}
	return []specs.Mount{{Destination: file, Type: "bind", Source: file,
		Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}}
}

// trustFiles are where distributions keep the authorities that a host trusts.
var trustFiles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}

// hostTrust shows the authorities that the host trusts to a step that uses its
// network: where a proxy opens TLS, nothing could be fetched without. They are
// not in the image: the file is in a tmpfs, and named by variables that OpenSSL
// and Node.js know, of which the step's own win.
func hostTrust(env []string) ([]specs.Mount, []string) {
	const place = "/dev/shm/ca-certificates.crt"
	i := slices.IndexFunc(trustFiles, func(file string) bool { _, err := os.Stat(file); return err == nil })
	if i < 0 {
		return nil, nil
	}
	var added []string
	for _, name := range []string{"SSL_CERT_FILE=", "NODE_EXTRA_CA_CERTS="} {
		if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name) }) {
			added = append(added, name+place)
		}
	}
	return []specs.Mount{{Destination: place, Type: "bind", Source: trustFiles[i],
		Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}}, added
}

// lookupUser resolves a Containerfile's USER, "name", "uid", "name:group" or
// "uid:gid", in the image's own files, which lead nowhere outside of it.
func lookupUser(rootfs, user string) (specs.User, error) {
	name, group, hasGroup := strings.Cut(user, ":")
	if name == "" || name == "root" && !hasGroup {
		return specs.User{}, nil
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return specs.User{}, err
	}
	defer root.Close()
	entry, err := findEntry(root, "etc/passwd", name)
	if err != nil {
		return specs.User{}, fmt.Errorf("USER %s: %w", user, err)
	}
	u := specs.User{UID: entry.id, GID: entry.group}
	if hasGroup {
		g, err := findEntry(root, "etc/group", group)
		if err != nil {
			return specs.User{}, fmt.Errorf("USER %s: %w", user, err)
		}
		u.GID = g.id
	}
	return u, nil
}

type idEntry struct{ id, group uint32 }

// findEntry looks a name or number up in a passwd(5) or group(5) file. A
// number need not be in it.
func findEntry(root *os.Root, file, name string) (idEntry, error) {
	if n, err := strconv.ParseUint(name, 10, 16); err == nil {
		return idEntry{id: uint32(n)}, nil
	}
	f, err := root.Open(file)
	if err != nil {
		return idEntry{}, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 1<<20))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 || fields[0] != name {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 16)
		if err != nil {
			return idEntry{}, fmt.Errorf("%s: %s has no usable id", file, name)
		}
		gid, _ := strconv.ParseUint(fields[3], 10, 16) // in group(5), members
		return idEntry{id: uint32(id), group: uint32(gid)}, nil
	}
	return idEntry{}, fmt.Errorf("%s has no entry %q", file, name)
}

// unshift gives the files of an upper directory the ids that they had inside
// the sandbox, so that the layer can be seen through any range.
func unshift(dir string, ids idRange) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		uid, gid := st.Uid, st.Gid
		if ids.holds(uid) {
			uid -= ids.base
		}
		if ids.holds(gid) {
			gid -= ids.base
		}
		if uid == st.Uid && gid == st.Gid {
			return nil // a hard link seen before, or the overlay's own
		}
		capability := fileCapability(path)
		if err := os.Lchown(path, int(uid), int(gid)); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return nil
		}
		// Changing the owner took setuid bits and capabilities away.
		if err := unix.Chmod(path, st.Mode&0o7777); err != nil {
			return err
		}
		if capability != nil {
			return unix.Lsetxattr(path, capabilityAttr, capability, 0)
		}
		return nil
	})
}

const capabilityAttr = "security.capability"

// fileCapability returns a file's capabilities as they are for the initial
// user namespace: set inside one they name its root, a form of 24 bytes
// (version 3), which without the root id at its end is version 2. See
// capabilities(7).
func fileCapability(path string) []byte {
	buf := make([]byte, 64)
	n, err := unix.Lgetxattr(path, capabilityAttr, buf)
	if err != nil || n < 20 {
		return nil
	}
	magic := binary.LittleEndian.Uint32(buf)
	const revisionMask, v2, v3 = 0xff000000, 0x02000000, 0x03000000
	if n == 24 && magic&revisionMask == v3 {
		binary.LittleEndian.PutUint32(buf, magic&^revisionMask|v2)
		n = 20
	}
	return buf[:n]
}
