// Node loads this before the script. While BELLJAR_GATE is set there is no
// script yet: what most scripts use is loaded, and then the FIFO of that name
// is read to its end, which comes once the script is there.
'use strict';

const gate = process.env.BELLJAR_GATE;
if (gate) {
  delete process.env.BELLJAR_GATE;
  for (const name of ['assert', 'child_process', 'crypto', 'os', 'path', 'url', 'util', 'zlib']) {
    require('node:' + name);
  }
  require('node:fs').readFileSync(gate);
}
