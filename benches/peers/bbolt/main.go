// This program has a bbolt file open and does what standard input says, a line of JSON each: the loads of
// src/bin/pages/load.rs, timed here.
//
// bbolt's side of the comparison is set up as its users set it up: without statistics, a hashmap
// freelist that is not written with commits (etcd's choice), or the named variants of it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

var bucketName = []byte("bench")

// load is a question; which of the fields mean something depends on its name.
type load struct {
	Load       string `json:"load"`
	First      uint64 `json:"first"`
	Keys       uint64 `json:"keys"`
	ValueBytes int    `json:"value_bytes"`
	InOrder    bool   `json:"in_order"`
	Commits    uint64 `json:"commits"`
	Puts       uint64 `json:"puts"`
	Seed       uint64 `json:"seed"`
	Threads    uint64 `json:"threads"`
	Ms         uint64 `json:"ms"`
	Length     uint64 `json:"length"`
	Pages      uint64 `json:"pages"`
	Scanners   uint64 `json:"scanners"`
	ScansEach  uint64 `json:"scans_each"`
	Grow       bool   `json:"grow"`
	Writes     uint64 `json:"writes_per_second"`
	Reads      uint64 `json:"reads_per_second"`
	Batch      bool   `json:"batch"`
}

type outcome struct {
	Error   string             `json:"error,omitempty"`
	Missing string             `json:"missing,omitempty"`
	Figures map[string]float64 `json:"figures"`
}

// addTimes adds percentiles of times in ns.
func (o *outcome) addTimes(what string, times []uint64) {
	slices.Sort(times)
	at := func(quantile float64) float64 {
		if len(times) == 0 {
			return 0
		}
		return float64(times[min(int(float64(len(times))*quantile), len(times)-1)]) / 1000
	}
	o.Figures[what+" p50 us"] = at(0.5)
	o.Figures[what+" p99 us"] = at(0.99)
	o.Figures[what+" p99.9 us"] = at(0.999)
	o.Figures[what+" max us"] = at(1)
}

type store struct {
	db   *bolt.DB
	path string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 || args[0] != "serve" {
		return fmt.Errorf("serve bbolt|bbolt-synced|bbolt-array DIR [--durable]")
	}
	options := &bolt.Options{
		Timeout:        time.Second,
		FreelistType:   bolt.FreelistMapType,
		NoFreelistSync: args[1] != "bbolt-synced",
		NoStatistics:   args[1] != "bbolt-synced",
	}
	if args[1] == "bbolt-array" {
		options.FreelistType = bolt.FreelistArrayType
	}
	durable := len(args) > 3 && args[3] == "--durable"
	options.NoSync = !durable
	path := filepath.Join(args[2], "bbolt")
	begin := time.Now()
	db, err := bolt.Open(path, 0o644, options)
	if err != nil {
		return err
	}
	opened := time.Since(begin)
	db.NoSync = !durable
	// No sync means none, also when the file grows.
	db.NoGrowSync = !durable
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucketName)
		return err
	})
	if err != nil {
		return err
	}
	s := &store{db: db, path: path}
	answers := json.NewEncoder(os.Stdout)
	first := outcome{Figures: map[string]float64{"open ms": opened.Seconds() * 1000}}
	if err := answers.Encode(first); err != nil {
		return err
	}
	questions := bufio.NewScanner(os.Stdin)
	for questions.Scan() {
		var question load
		if err := json.Unmarshal(questions.Bytes(), &question); err != nil {
			return err
		}
		if question.Load == "close" {
			if err := s.settle(); err != nil {
				return err
			}
			if err := db.Close(); err != nil {
				return err
			}
			return answers.Encode(outcome{Figures: map[string]float64{}})
		}
		answer := outcome{Figures: map[string]float64{}}
		if err := s.do(&question, &answer); err != nil {
			answer.Error = err.Error()
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
		if question.Load == "write_on" {
			return s.writeOn(&question)
		}
	}
	return questions.Err()
}

func (s *store) do(l *load, o *outcome) error {
	switch l.Load {
	case "fill":
		return s.fill(l, o)
	case "commits":
		return s.commits(l, o)
	case "durable":
		return s.durableCommits(l, o)
	case "gets":
		return s.gets(l, o)
	case "scans":
		return s.scans(l, o)
	case "beside":
		return s.beside(l, o)
	case "scatter":
		return s.scatter(l, o)
	case "large":
		return s.large(l, o)
	case "free_space":
		return s.freeSpace(l, o)
	case "prove":
		return s.prove(l)
	case "status":
		return s.status(o)
	case "write_on":
		return nil
	}
	o.Missing = "bbolt's program does not do this"
	return nil
}

func (s *store) status(o *outcome) error {
	file, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	o.Figures["file MiB"] = float64(file.Size()) / (1 << 20)
	if stats := s.db.Stats(); stats.FreePageN > 0 {
		o.Figures["free pages"] = float64(stats.FreePageN)
	}
	return nil
}

// settle makes all that was committed durable.
func (s *store) settle() error {
	return s.db.Sync()
}

// write is one commit.
func (s *store) write(work func(*bolt.Bucket) error) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		return work(tx.Bucket(bucketName))
	})
}

// read is one read transaction.
func (s *store) read(work func(*bolt.Bucket) error) error {
	return s.db.View(func(tx *bolt.Tx) error {
		return work(tx.Bucket(bucketName))
	})
}
