package main

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"belljar/internal/sandbox"
)

// metrics are what GET /metrics tells, in the text format of Prometheus.
type metrics struct {
	registry *prometheus.Registry
	claims   *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		claims: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "belljar_claim_seconds",
			Help: "Time from a run's turn to the start of its script; hit is whether a spare sandbox of its runtime was there.",
			// From a warm start to a cold one on a busy machine.
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"runtime", "hit"}),
	}
	m.registry.MustRegister(m.claims, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observeClaim(runtime string, hit bool, wait time.Duration) {
	m.claims.WithLabelValues(runtime, strconv.FormatBool(hit)).Observe(wait.Seconds())
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// poolCollector reads the pool's state when it is asked for.
type poolCollector struct {
	state func() ([]sandbox.PoolState, int64)
}

var (
	poolReady  = poolDesc("ready", "Spare sandboxes that a script of the runtime can start in; runtimes that cannot be started in advance share those of their image.")
	poolTarget = poolDesc("target", "Spare sandboxes that there should be.")
	poolHits   = poolDesc("hits_total", "Runs that found a spare sandbox of their runtime.")
	poolMisses = poolDesc("misses_total", "Runs that did not.")
	poolMemory = prometheus.NewDesc("belljar_pool_memory_bytes", "Memory that the spare sandboxes use together.", nil, nil)
)

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("belljar_pool_"+name, help, []string{"runtime"}, nil)
}

// Describe implements prometheus.Collector.
func (c poolCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c poolCollector) Collect(ch chan<- prometheus.Metric) {
	states, memory := c.state()
	for _, s := range states {
		for _, v := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value float64
		}{
			{poolReady, prometheus.GaugeValue, float64(s.Ready)},
			{poolTarget, prometheus.GaugeValue, float64(s.Target)},
			{poolHits, prometheus.CounterValue, float64(s.Hits)},
			{poolMisses, prometheus.CounterValue, float64(s.Misses)},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, s.Runtime)
		}
	}
	ch <- prometheus.MustNewConstMetric(poolMemory, prometheus.GaugeValue, float64(memory))
}
