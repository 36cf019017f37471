package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// parse reads settings as the program does, from flags, variables and a .env
// file's text.
func parse(t *testing.T, dotenv string, env map[string]string, args ...string) (Config, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if dotenv != "" {
		if err := os.WriteFile(".env", []byte(dotenv), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
	before := os.Environ()
	t.Cleanup(func() {
		os.Clearenv()
		for _, v := range before {
			name, value, _ := strings.Cut(v, "=")
			os.Setenv(name, value)
		}
	})
	if err := loadDotEnv(); err != nil {
		return Config{}, err
	}
	unsetEmpty()
	var c cli
	parser, err := kong.New(&c, kong.Exit(func(int) { t.Error("parsing exits") }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append(args, "version")); err != nil {
		return Config{}, err
	}
	return c.Config, c.check()
}

func TestPrecedence(t *testing.T) {
	dotenv := "SANDBOX_PORT=1001\nDEFAULT_TIMEOUT=11\nMAX_OUTPUT_BYTES=1KiB\nSANDBOX_IMAGE=from-file\n"
	env := map[string]string{"SANDBOX_PORT": "2002", "DEFAULT_TIMEOUT": "22", "SANDBOX_IMAGE": ""}
	c, err := parse(t, dotenv, env, "--port", "3003")
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 3003 {
		t.Errorf("port %d: a flag goes over the environment", c.Port)
	}
	if c.DefaultTimeout != seconds(22*time.Second) {
		t.Errorf("default timeout %v: the environment goes over .env", c.DefaultTimeout)
	}
	if c.MaxOutput != 1024 {
		t.Errorf("output %d: .env goes over the default", c.MaxOutput)
	}
	if c.Image != "science" {
		t.Errorf("image %q: a variable that is set to nothing counts as not set", c.Image)
	}
}

func TestBothNames(t *testing.T) {
	c, err := parse(t, "", map[string]string{"HOST": "localhost", "PORT": "9", "SANDBOX_PORT": "10"})
	if err != nil || c.Host != "localhost" || c.Port != 10 {
		t.Errorf("host %q, port %d, %v; want HOST taken, SANDBOX_PORT over PORT", c.Host, c.Port, err)
	}
}

func TestUnits(t *testing.T) {
	c, err := parse(t, "", map[string]string{
		"OUTPUT_TTL": "90", "MAX_TIMEOUT": "10m", "DEFAULT_TIMEOUT": "1.5",
		"BELLJAR_MEMORY": "1.5GiB", "BELLJAR_DISK": "512m", "BELLJAR_INPUT_BYTES": "65536",
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][2]int64{
		"a bare number":  {int64(c.OutputTTL), int64(90 * time.Second)},
		"with a unit":    {int64(c.MaxTimeout), int64(10 * time.Minute)},
		"a fraction":     {int64(c.DefaultTimeout), int64(1500 * time.Millisecond)},
		"gibibytes":      {int64(c.Memory), 3 << 29},
		"short and low":  {int64(c.Disk), 512 << 20},
		"a bare number ": {int64(c.InputBytes), 65536},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d, want %d", name, got[0], got[1])
		}
	}
}

// TestBadValues wants each refused by the name under which it was set.
func TestBadValues(t *testing.T) {
	for name, values := range map[string][]string{
		"SANDBOX_HOST":          {"0.0.0.0", "::", "192.168.1.5", "example.org"},
		"SANDBOX_PORT":          {"-1", "70000", "http"},
		"PORT":                  {"x"},
		"SANDBOX_PUBLIC_URL":    {"example.org", "ftp://example.org", "https://", "https://a/?q=1"},
		"MCP_TRANSPORT":         {"carrier-pigeon"},
		"DEFAULT_TIMEOUT":       {"0", "-5", "301", "soon"},
		"MAX_TIMEOUT":           {"never"},
		"OUTPUT_TTL":            {"0", "-1", "1 fortnight"},
		"MAX_OUTPUT_BYTES":      {"0", "5MiB", "lots"},
		"BELLJAR_MEMORY":        {"1MiB", "2 gigs"},
		"BELLJAR_CPUS":          {"0", "-2", "all"},
		"BELLJAR_PIDS":          {"0"},
		"BELLJAR_DISK":          {"1"},
		"BELLJAR_INODES":        {"3"},
		"BELLJAR_NETWORK":       {"the internet", "10.0.0.0/8", "example.org:0", "*"},
		"BELLJAR_NETWORK_ALLOW": {"example.org", "10.0.0.0/33", "224.0.0.0/4"},
		"BELLJAR_NETWORK_FLOWS": {"0", "many"},
		"BELLJAR_NETWORK_RATE":  {"-1"},
		"BELLJAR_CONCURRENCY":   {"0"},
		"BELLJAR_LOG_LEVEL":     {"loud"},
		"BELLJAR_STATE_DIR":     {"/" + strings.Repeat("long/", 30)},
		"BELLJAR_STRICT_LIMITS": {"perhaps"},
		"BELLJAR_OUTPUT_BYTES":  {"-1"},
		"BELLJAR_KEEP_ALIVE":    {"-1"},
		"BELLJAR_OUTPUT_QUOTA":  {"99999999T"},
		"BELLJAR_OUTPUT_FILES":  {"0"},
		"BELLJAR_INPUT_BYTES":   {"0"},
		"BELLJAR_LOG_BYTES":     {"0"},
		"BELLJAR_TMP":           {"0"},
	} {
		for _, value := range values {
			t.Run(name, func(t *testing.T) {
				_, err := parse(t, "", map[string]string{name: value})
				if err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%q: %v, want an error that names the variable", value, err)
				}
			})
		}
	}
}

// TestBadValuesSayWhatIsRight wants the bound in the message.
func TestBadValuesSayWhatIsRight(t *testing.T) {
	for set, want := range map[string]string{
		"BELLJAR_MEMORY=1":      "at least 16MiB",
		"MAX_OUTPUT_BYTES=5MiB": "at most 4MiB",
		"DEFAULT_TIMEOUT=400":   "at most MAX_TIMEOUT, 5m0s",
		"SANDBOX_PORT=99999":    "0 to 65535",
	} {
		name, value, _ := strings.Cut(set, "=")
		t.Run(name, func(t *testing.T) {
			if _, err := parse(t, "", map[string]string{name: value}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", set, err, want)
			}
		})
	}
}

// TestReadmeNamesEverySetting keeps the README's table complete.
func TestReadmeNamesEverySetting(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range settings() {
		n++
		if !strings.Contains(string(readme), "`"+name+"`") {
			t.Errorf("README.md does not have %s", name)
		}
	}
	if n < 20 {
		t.Errorf("only %d settings found", n)
	}
}
