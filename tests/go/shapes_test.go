package flotilla

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tikv/client-go/v2/rawkv"
)

// shape is the mix of a workload of YCSB (Cooper et al., SoCC 2010): shares of a hundred operations.
type shape struct {
	name                             string
	read, update, insert, scan, both int
	latest                           bool
}

var shapes = []shape{
	{name: "A", read: 50, update: 50},
	{name: "B", read: 95, update: 5},
	{name: "C", read: 100},
	{name: "D", read: 95, insert: 5, latest: true},
	{name: "E", scan: 95, insert: 5},
	{name: "F", read: 50, both: 50},
}

const (
	records   = 2000
	workers   = 16
	scanLimit = 100
)

// recordKey spreads the records over the key space, as YCSB hashes them.
func recordKey(number int64) []byte {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d", number)
	return []byte(fmt.Sprintf("%cycsb-%016x", byte(hash.Sum64()%224), hash.Sum64()))
}

// record is a row of ten fields of a hundred bytes, which begins with its key.
func record(key []byte, rng *rand.Rand) []byte {
	row := make([]byte, 1000)
	rng.Read(row)
	copy(row, key)
	return row
}

// TestShapes runs YCSB's workloads A to F, each for FLOTILLA_SECONDS.
func TestShapes(t *testing.T) {
	ctx, client := connect(t)
	seconds, _ := strconv.Atoi(os.Getenv("FLOTILLA_SECONDS"))
	if seconds == 0 {
		t.Skip("FLOTILLA_SECONDS asks for no time")
	}
	load(t, ctx, client)
	var count atomic.Int64
	count.Store(records)
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			until := time.Now().Add(time.Duration(seconds) * time.Second)
			var done atomic.Int64
			var group sync.WaitGroup
			for worker := 0; worker < workers; worker++ {
				group.Add(1)
				go func() {
					defer group.Done()
					rng := rand.New(rand.NewSource(int64(worker)))
					for time.Now().Before(until) && !t.Failed() {
						operate(t, ctx, client, shape, rng, &count)
						done.Add(1)
					}
				}()
			}
			group.Wait()
			t.Logf("%d operations", done.Load())
		})
	}
}

func load(t *testing.T, ctx context.Context, client *rawkv.Client) {
	rng := rand.New(rand.NewSource(1))
	for first := int64(0); first < records; first += 100 {
		var keys, values [][]byte
		for number := first; number < first+100; number++ {
			key := recordKey(number)
			keys, values = append(keys, key), append(values, record(key, rng))
		}
		check(t, "load", client.BatchPut(ctx, keys, values))
	}
}

// operate does one operation of a shape. An error, or a row that is not what it was, fails the test.
func operate(t *testing.T, ctx context.Context, client *rawkv.Client, shape shape, rng *rand.Rand, count *atomic.Int64) {
	number := int64(rand.NewZipf(rng, 1.1, 8, uint64(records-1)).Uint64())
	if shape.latest {
		number = records - 1 - number
	}
	key := recordKey(number)
	fail := func(what string, err error) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	read := func() {
		value, err := client.Get(ctx, key)
		fail("get", err)
		if err == nil && !bytes.HasPrefix(value, key) {
			t.Errorf("the row of %q begins with %.40q", key, value)
		}
	}
	switch draw := rng.Intn(100); {
	case draw < shape.read:
		read()
	case draw < shape.read+shape.update:
		fail("update", client.Put(ctx, key, record(key, rng)))
	case draw < shape.read+shape.update+shape.both:
		read()
		fail("update", client.Put(ctx, key, record(key, rng)))
	case draw < shape.read+shape.update+shape.both+shape.insert:
		key := recordKey(count.Add(1) - 1)
		fail("insert", client.Put(ctx, key, record(key, rng)))
	default:
		keys, values, err := client.Scan(ctx, key, []byte{0xe0}, 1+rng.Intn(scanLimit))
		fail("scan", err)
		if err == nil && (len(keys) == 0 || !bytes.Equal(keys[0], key)) {
			t.Errorf("a scan from %q does not begin with it", key)
		}
		for i := range keys {
			if bytes.Contains(keys[i], []byte("ycsb-")) && !bytes.HasPrefix(values[i], keys[i]) {
				t.Errorf("the row of %q begins with %.40q", keys[i], values[i])
			}
		}
	}
}
