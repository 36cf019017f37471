package image

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// owner looks up "user", "user:group", numbers or names, in the view.
func (v view) owner(spec string) (uid, gid int, err error) {
	if spec == "" {
		return 0, 0, nil
	}
	user, group, hasGroup := strings.Cut(spec, ":")
	u, err := v.account("etc/passwd", user)
	if err != nil {
		return 0, 0, err
	}
	uid, gid = u.id, u.id
	if u.fields != nil {
		if gid, err = parseID(u.fields[3]); err != nil {
			return 0, 0, err
		}
	}
	if hasGroup {
		g, err := v.account("etc/group", group)
		if err != nil {
			return 0, 0, err
		}
		gid = g.id
	}
	return uid, gid, nil
}

type account struct {
	id     int
	fields []string // of the line; nil for a number that is not listed
}

// account finds a user or group by name or number.
func (v view) account(file, who string) (account, error) {
	num, numErr := parseID(who)
	f, err := v.open(file)
	if err == nil {
		defer f.Close()
		for sc := bufio.NewScanner(io.LimitReader(f, 1<<20)); sc.Scan(); {
			fields := strings.Split(sc.Text(), ":")
			if len(fields) < 4 {
				continue
			}
			id, err := parseID(fields[2])
			if err == nil && (fields[0] == who || numErr == nil && id == num) {
				return account{id, fields}, nil
			}
		}
	}
	if numErr == nil {
		return account{id: num}, nil
	}
	return account{}, fmt.Errorf("no %q in the image's /%s", who, file)
}

func parseID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 { // the kernel's "no change"
		return 0, fmt.Errorf("id %q: want a number", s)
	}
	return int(n), nil
}

// home is the home directory of a step's user, "/" if not known.
func (v view) home(user string) string {
	user, _, _ = strings.Cut(user, ":")
	if user == "" {
		user = "0"
	}
	if a, err := v.account("etc/passwd", user); err == nil && len(a.fields) > 5 && path.IsAbs(a.fields[5]) {
		return a.fields[5]
	}
	if slices.Contains([]string{"0", "root"}, user) {
		return "/root"
	}
	return "/"
}
