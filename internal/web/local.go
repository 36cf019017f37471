package web

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
)

// Local is for what has no sign-in: it admits only requests that a program
// on this machine, or a page served from it, has sent straight to us. Any
// other gets 403, with the reason in words.
//
// Binding to loopback is not enough for that. A page of any site may reach a
// loopback port through the user's browser, once its own name resolves to
// 127.0.0.1; its Host and Origin give it away. And a reverse proxy would open
// the endpoint to everybody, so what proxies add to requests is refused too,
// and so is HTTP/1.0, which they speak where they add nothing.
func (s *Server) Local() Middleware {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if reason := s.notLocal(r); reason != "" {
				id := RequestID(r.Context())
				s.log.Warn("refused", "id", id, "reason", reason)
				plain(w, http.StatusForbidden, fmt.Sprintf("forbidden: %s (request %s)", reason, id))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// notLocal says why a request is not local, or "".
func (s *Server) notLocal(r *http.Request) string {
	for name := range r.Header {
		if forwarding(name) {
			return fmt.Sprintf("the header %.40q says that a proxy has forwarded this request; until sign-in exists, this endpoint must not be behind one (SANDBOX_PUBLIC_URL is for downloads)", name)
		}
	}
	if !r.ProtoAtLeast(1, 1) {
		return "the request is HTTP/1.0, as from a reverse proxy; until sign-in exists, this endpoint must not be behind one"
	}
	if !loopback(r.Host) {
		if s.publicURL != nil && strings.EqualFold(r.Host, s.publicURL.Host) {
			return fmt.Sprintf("Host %.100q is that of SANDBOX_PUBLIC_URL, which is for downloads; until sign-in exists, this endpoint is reached as localhost only", r.Host)
		}
		return fmt.Sprintf("Host %.100q is not localhost, 127.0.0.1 or [::1]; until sign-in exists, this endpoint has no other name, and SANDBOX_PUBLIC_URL gives one to downloads only", r.Host)
	}
	origins := r.Header.Values("Origin")
	if len(origins) > 1 || len(origins) == 1 && !loopbackOrigin(origins[0]) {
		return fmt.Sprintf("Origin %.100q is not a page of this machine", strings.Join(origins, ", "))
	}
	return ""
}

// loopback reports whether a Host header names this machine in one of the
// three spellings that are beyond doubt, with or without a port. A resolver
// may send any other wherever it likes.
func loopback(host string) bool {
	for _, name := range []string{"localhost", "127.0.0.1", "[::1]"} {
		if len(host) < len(name) || !strings.EqualFold(host[:len(name)], name) {
			continue
		}
		port, ok := strings.CutPrefix(host[len(name):], ":")
		return ok && decimal(port) || host[len(name):] == ""
	}
	return false
}

// decimal reports whether s can be a port.
func decimal(s string) bool {
	return len(s) >= 1 && len(s) <= 5 && strings.Trim(s, "0123456789") == ""
}

// loopbackOrigin reports whether an Origin header names a page that this
// machine served.
func loopbackOrigin(origin string) bool {
	host, ok := strings.CutPrefix(origin, "http://")
	if !ok {
		host, ok = strings.CutPrefix(origin, "https://")
	}
	return ok && loopback(host)
}

// forwarders are the headers by which proxies, load balancers, content
// networks and tunnels say on whose behalf they ask. A dash at the end stands
// for any header that begins so.
var forwarders = []string{
	"Cdn-Loop", "Cf-", "Client-Ip", "Fastly-", "Fly-", "Forwarded", "Forwarded-",
	"Ngrok-", "Proxy-Connection", "Tailscale-", "True-Client-Ip", "Via",
	"X-Amzn-Trace-Id", "X-Appengine-", "X-Arr-", "X-Azure-", "X-Client-Ip",
	"X-Cloud-Trace-Context", "X-Cluster-Client-Ip", "X-Envoy-", "X-Forwarded",
	"X-Forwarded-", "X-Original-", "X-Proxy-", "X-Proxyuser-Ip", "X-Real-Ip",
	"X-Rewrite-Url", "X-Scheme", "X-Vercel-",
}

func forwarding(name string) bool {
	// Some proxies pass an underscore on as a dash, and some as it is.
	name = textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))
	for _, f := range forwarders {
		if name == f || strings.HasSuffix(f, "-") && strings.HasPrefix(name, f) {
			return true
		}
	}
	return false
}
