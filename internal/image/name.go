package image

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// maxName bounds an image name, in bytes. Registries allow no more than 255
// for the repository and 128 for the tag.
const maxName = 512

var (
	registryHost = regexp.MustCompile(`^[a-zA-Z0-9\[]`)
	fullDigest   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	digestPrefix = regexp.MustCompile(`^(?:sha256:)?([0-9a-f]{4,64})$`)
)

// parseName reads a name as people type it at docker: "mini",
// "debian:trixie-slim", "ghcr.io/x/y:tag", "debian@sha256:…".
func parseName(ref string) (name.Reference, error) {
	if len(ref) > maxName {
		return nil, fmt.Errorf("image name of %d bytes: at most %d", len(ref), maxName)
	}
	if fullDigest.MatchString(ref) {
		return nil, fmt.Errorf("image name %q is a digest; want a name such as mini or debian:trixie-slim", ref)
	}
	var r name.Reference
	var err error
	if strings.Contains(ref, "@") {
		r, err = name.NewDigest(ref)
	} else {
		r, err = name.NewTag(ref)
	}
	if err == nil && !registryHost.MatchString(r.Context().RegistryStr()) {
		err = fmt.Errorf("%q cannot be a registry", r.Context().RegistryStr())
	}
	if err != nil {
		return nil, fmt.Errorf("image name %q: %w", ref, err)
	}
	return r, nil
}

// familiar is the one spelling under which a name is stored: without the
// default registry, its library, and the default tag.
func familiar(r name.Reference) string {
	repo := r.Context()
	s := repo.RegistryStr() + "/" + repo.RepositoryStr()
	if repo.RegistryStr() == name.DefaultRegistry {
		s = strings.TrimPrefix(repo.RepositoryStr(), "library/")
	}
	switch r := r.(type) {
	case name.Digest:
		s += "@" + r.DigestStr()
	case name.Tag:
		if r.TagStr() != name.DefaultTag {
			s += ":" + r.TagStr()
		}
	}
	return s
}

// parseTag reads a name that is to point at a new image.
func parseTag(ref string) (string, error) {
	r, err := parseName(ref)
	if err != nil {
		return "", err
	}
	if _, ok := r.(name.Tag); !ok {
		return "", fmt.Errorf("image name %q: an image cannot be named by a digest", ref)
	}
	return familiar(r), nil
}
