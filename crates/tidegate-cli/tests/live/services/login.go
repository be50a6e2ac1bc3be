// A login that answers 401, as services are written in Go, and counts the guesses at each account.
//
// With the argument json it decodes JSON whatever the type, with form it asks for a form value.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
)

func main() {
	var mutex sync.Mutex
	guesses := map[string]int{}
	email := func(r *http.Request) string {
		if os.Args[1] == "form" {
			return r.FormValue("email")
		}
		var login struct{ Email string }
		_ = json.NewDecoder(r.Body).Decode(&login)
		return login.Email
	}
	http.HandleFunc("/auth/login", func(w http.ResponseWriter, r *http.Request) {
		name := email(r)
		mutex.Lock()
		guesses[name]++
		mutex.Unlock()
		w.WriteHeader(http.StatusUnauthorized)
	})
	http.HandleFunc("/guesses", func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		fmt.Fprint(w, guesses[r.URL.Query().Get("email")])
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("listening %s\n", listener.Addr())
	panic(http.Serve(listener, nil))
}
