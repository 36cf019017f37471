package agent

import (
	"runtime"
	"sync"
)

// reserveThreads makes the runtime start n more threads now. It keeps them,
// so that later, when a script has used up the sandbox's processes, it need
// not start one: it could not, and would crash.
func reserveThreads(n int) {
	var started, ended sync.WaitGroup
	started.Add(n)
	release := make(chan struct{})
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			started.Done()
			<-release
			runtime.UnlockOSThread()
		})
	}
	started.Wait()
	close(release)
	ended.Wait() // until then, the threads serve nobody else
}
