package artifact

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const secretBytes = 32

// LinkSecret returns the server's secret for links, 32 bytes, from a file that
// its owner alone may read. It is made if missing; whoever deletes it makes
// all links worthless. One process at a time uses the directory.
func LinkSecret(path string) ([]byte, error) {
	secret, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeSecret(path); err == nil {
			secret, err = readSecret(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the secret for links: %w", err)
	}
	return secret, nil
}

func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others, mode %o: delete it if they may have, which ends all links, or chmod it 600", path, info.Mode().Perm())
	}
	secret := make([]byte, secretBytes+1)
	n, _ := f.Read(secret)
	if n != secretBytes {
		return nil, fmt.Errorf("%s does not hold %d bytes: delete it to get a new one, which ends all links", path, secretBytes)
	}
	return secret[:n], nil
}

// makeSecret makes the file whole or not at all.
func makeSecret(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	var secret [secretBytes]byte
	rand.Read(secret[:]) // never fails
	_, err = f.Write(secret[:])
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
