package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// flatten makes dst, an empty directory, the root filesystem that an overlay
// of layers, the lowest first, would show. Files are linked, not copied; that
// is sound since neither layers nor root filesystems are ever written to.
//
// All paths are followed one directory at a time through directories that
// this made or looked at, so no link in a layer leads anywhere.
func flatten(ctx context.Context, dst string, layers []string) error {
	for _, l := range layers {
		if err := mergeDir(ctx, dst, l); err != nil {
			return err
		}
	}
	return nil
}

// mergeDir puts the upper directory src over the plain directory dst.
func mergeDir(ctx context.Context, dst, src string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// Nothing that these stand for is done here; a layer is not to have them.
	for _, attr := range []string{"redirect", "metacopy"} {
		if overlayAttr(src, attr) != "" {
			return fmt.Errorf("%s: made by an overlay with %s on", src, attr)
		}
	}
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := mergeEntry(ctx, filepath.Join(dst, e.Name()), filepath.Join(src, e.Name())); err != nil {
			return err
		}
	}
	// After its entries, whose making changed its time.
	return copyMeta(dst, src)
}

func mergeEntry(ctx context.Context, dst, src string) error {
	fi, err := os.Lstat(src)
	if err != nil {
		return err
	}
	old, err := os.Lstat(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	merge := fi.IsDir() && old != nil && old.IsDir() && !isOpaque(src)
	if old != nil && !merge {
		if err := os.RemoveAll(dst); err != nil {
			return err
		}
	}
	switch {
	case fi.IsDir():
		if !merge {
			if err := os.Mkdir(dst, 0o700); err != nil {
				return err
			}
		}
		return mergeDir(ctx, dst, src)
	case isWhiteout(src, fi) || fi.Mode()&fs.ModeDevice != 0:
		return nil // devices have no place in an image
	}
	return linkFile(dst, src, fi)
}

// linkFile links src to dst; a file that has as many links as its file system
// allows is copied.
func linkFile(dst, src string, fi fs.FileInfo) error {
	err := os.Link(src, dst)
	if !errors.Is(err, syscall.EMLINK) || !fi.Mode().IsRegular() {
		return err
	}
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := writeFile(dst, in); err != nil {
		return err
	}
	return copyMeta(dst, src)
}

// writeFile makes a new file; it fails if there is one, or a link.
func writeFile(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
